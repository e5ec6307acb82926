//! The few calls of the CUDA driver that recording needs.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

/// The first GPU.
pub(crate) struct Device {
    driver: libloading::Library,
}

impl Device {
    pub(crate) fn open() -> Self {
        // SAFETY: loading the driver runs its initialisers, which are meant for any process.
        let driver = unsafe { libloading::Library::new("libcuda.so.1") }.expect("a CUDA driver");
        let device = Self { driver };
        let mut context = std::ptr::null_mut::<c_void>();
        device.call(c"cuInit", |f: unsafe extern "C" fn(c_uint) -> c_int| {
            // SAFETY: the signature is the driver's.
            unsafe { f(0) }
        });
        device.call(c"cuCtxCreate_v2", |f: unsafe extern "C" fn(*mut *mut c_void, c_uint, c_int) -> c_int| {
            // SAFETY: the signature is the driver's, and the pointer is to a place for the context.
            unsafe { f(&mut context, 0, 0) }
        });
        device
    }

    fn call<F: Copy>(&self, name: &CStr, call: impl FnOnce(F) -> c_int) {
        // SAFETY: callers give the function its type of the driver's header.
        let function = unsafe { self.driver.get::<F>(name.to_bytes_with_nul()) }.expect("a function of the driver");
        let status = call(*function);
        assert_eq!(status, 0, "{name:?} failed");
    }

    /// Runs the kernel `k(from, to)` and returns what it stored.
    pub(crate) fn run(&self, ptx: &str, blocks: u32, input: &[u32], output_words: usize) -> Vec<u32> {
        let text = CString::new(ptx).expect("PTX has no zero byte");
        let (mut module, mut function) = (std::ptr::null_mut::<c_void>(), std::ptr::null_mut::<c_void>());
        let (mut from, mut to) = (0u64, 0u64);
        let mut output = vec![0u32; output_words];
        type Load = unsafe extern "C" fn(*mut *mut c_void, *const c_char) -> c_int;
        type Get = unsafe extern "C" fn(*mut *mut c_void, *mut c_void, *const c_char) -> c_int;
        type Alloc = unsafe extern "C" fn(*mut u64, usize) -> c_int;
        type ToDevice = unsafe extern "C" fn(u64, *const u32, usize) -> c_int;
        type ToHost = unsafe extern "C" fn(*mut u32, u64, usize) -> c_int;
        type Clear = unsafe extern "C" fn(u64, u8, usize) -> c_int;
        type Launch = unsafe extern "C" fn(
            *mut c_void,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            *mut c_void,
            *mut *mut c_void,
            *mut *mut c_void,
        ) -> c_int;
        let (from_bytes, to_bytes) = (input.len() * 4, output_words * 4);
        // SAFETY: the signatures are the driver's, pointers are to live places of the sizes given, and the kernel
        // stays within both buffers.
        unsafe {
            self.call(c"cuModuleLoadData", |f: Load| f(&mut module, text.as_ptr()));
            self.call(c"cuModuleGetFunction", |f: Get| f(&mut function, module, c"k".as_ptr()));
            self.call(c"cuMemAlloc_v2", |f: Alloc| f(&mut from, from_bytes));
            self.call(c"cuMemAlloc_v2", |f: Alloc| f(&mut to, to_bytes));
            self.call(c"cuMemcpyHtoD_v2", |f: ToDevice| f(from, input.as_ptr(), from_bytes));
            self.call(c"cuMemsetD8_v2", |f: Clear| f(to, 0, to_bytes));
            let mut arguments = [(&raw mut from).cast::<c_void>(), (&raw mut to).cast::<c_void>()];
            let (null, list) = (std::ptr::null_mut(), arguments.as_mut_ptr());
            self.call(c"cuLaunchKernel", |f: Launch| {
                f(function, blocks, 1, 1, 32, 1, 1, 0, null, list, std::ptr::null_mut())
            });
            self.call(c"cuMemcpyDtoH_v2", |f: ToHost| f(output.as_mut_ptr(), to, to_bytes));
        }
        output
    }
}
