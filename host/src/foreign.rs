//! Kernels that are not this library's, for tests of devices.

use crate::driver::LaunchCall;
use crate::{Device, Error, Result};

impl Device {
    /// Loads `image` (PTX text, or a code object), runs its kernel `name` once to its end with `blocks` blocks of
    /// `threads` threads, and unloads it. `arguments` has a cell an argument, its value in the first bytes.
    ///
    /// # Errors
    /// [`Error::Argument`] for no blocks or threads, or what the driver says.
    ///
    /// # Safety
    /// The kernel takes these arguments, and what it accesses through them is live device memory that nothing else
    /// uses meanwhile.
    pub unsafe fn run_image(
        &self,
        image: &[u8],
        name: &str,
        blocks: u32,
        threads: u32,
        arguments: &[u64],
    ) -> Result<()> {
        for (argument, given) in [("blocks", blocks), ("threads", threads)] {
            if given == 0 {
                return Err(Error::argument(argument, given, "at least 1"));
            }
        }
        let driver = self.driver();
        let stream = self.stream()?;
        let module = driver.module_load(image)?;
        // SAFETY: module and stream live until the kernel has ended, and then the module is not used again. The
        // arguments are the caller's promise.
        unsafe {
            let ran = driver.module_function(module, name, 0).and_then(|function| {
                let call = LaunchCall { function, grid: blocks, block: threads, shared_bytes: 0, arguments };
                driver.launch(stream.handle(), &call)?;
                stream.synchronize()
            });
            driver.module_unload(module);
            ran
        }
    }
}
