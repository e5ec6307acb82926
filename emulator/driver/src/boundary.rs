//! What C passes: places for results, strings, arguments, images. All that has to be trusted is read here.

use std::ffi::{CStr, c_char, c_void};

use crate::code::Code;

/// Exports functions under their C names. A body gives `Ok` or the code that the function returns.
macro_rules! exports {
    ($(fn $name:ident($($argument:ident: $ty:ty),* $(,)?) $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: $ty),*) -> u32 {
                let body = || -> std::result::Result<(), $crate::code::Code> { $body };
                body().map_or_else(|code| code as u32, |()| 0)
            }
        )*
    };
}
pub(crate) use exports;

/// The caller's place for a value that a result replaces: null, or valid for both, as the drivers' documentation demands.
#[repr(transparent)]
pub(crate) struct InOut<T>(*mut T);

impl<T: Copy> InOut<T> {
    /// Replaces the value by what `result` makes of it.
    pub(crate) fn exchange(&self, result: impl FnOnce(T) -> Result<T, Code>) -> Result<(), Code> {
        if self.0.is_null() {
            return Err(Code::InvalidValue);
        }
        // SAFETY: the caller's place is valid.
        unsafe { self.0.write(result(self.0.read())?) };
        Ok(())
    }
}

/// The caller's place for a result: null, or valid for a write, as the drivers' documentation demands.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Whether the place's address is a multiple of `align`.
    pub(crate) fn is_aligned(&self, align: usize) -> bool {
        self.0.addr().is_multiple_of(align)
    }

    /// Stores what `value` gives; does not call it where there is no place.
    pub(crate) fn put(self, value: impl FnOnce() -> Result<T, Code>) -> Result<(), Code> {
        if self.0.is_null() {
            return Err(Code::InvalidValue);
        }
        let value = value()?;
        // SAFETY: only C makes an `Out`, which is null or a valid place.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }
}

/// The caller's array, to be read: null, or valid for as many elements as the call says.
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T> In<T> {
    pub(crate) fn slice<'a>(&self, length: usize) -> Result<&'a [T], Code> {
        match self.0.is_null() {
            true if length == 0 => Ok(&[]),
            true => Err(Code::InvalidValue),
            // SAFETY: only C makes an `In`, which is valid for the length that the call says, while it lasts.
            false => Ok(unsafe { std::slice::from_raw_parts(self.0, length) }),
        }
    }
}

/// The caller's bytes, to be written: null, or valid for as many as the call says.
#[repr(transparent)]
pub(crate) struct Bytes(*mut u8);

impl Bytes {
    /// Those at an address that was passed as a number.
    pub(crate) fn at(address: usize) -> Self {
        Self(std::ptr::with_exposed_provenance_mut(address))
    }

    pub(crate) fn slice<'a>(&self, bytes: usize) -> Result<&'a mut [u8], Code> {
        match self.0.is_null() {
            true if bytes == 0 => Ok(&mut []),
            true => Err(Code::InvalidValue),
            // SAFETY: only C makes a `Bytes`, which is valid for the length that the call says, while it lasts.
            false => Ok(unsafe { std::slice::from_raw_parts_mut(self.0, bytes) }),
        }
    }

    /// Text, cut to fit, and the zero byte behind it.
    pub(crate) fn put_text(&self, text: &str, bytes: usize) -> Result<(), Code> {
        let place = self.slice(bytes)?;
        let Some(most) = bytes.checked_sub(1) else { return Ok(()) };
        let length = text.len().min(most);
        place[..length].copy_from_slice(&text.as_bytes()[..length]);
        place[length] = 0;
        Ok(())
    }
}

/// The caller's string: null, or ended by a zero byte.
#[repr(transparent)]
pub(crate) struct Text(*const c_char);

impl Text {
    pub(crate) fn get<'a>(&self) -> Result<&'a str, Code> {
        if self.0.is_null() {
            return Err(Code::InvalidValue);
        }
        // SAFETY: only C makes a `Text`, which has its end.
        let text = unsafe { CStr::from_ptr(self.0) };
        text.to_str().map_err(|_| Code::InvalidValue)
    }
}

/// The caller's pointers to a kernel's arguments: as many as the kernel has, each valid for its argument's size.
#[repr(transparent)]
pub(crate) struct Arguments(*const *const c_void);

impl Arguments {
    /// A cell an argument, zero-extended.
    pub(crate) fn read(&self, sizes: &[u32]) -> Result<Vec<u64>, Code> {
        if self.0.is_null() && !sizes.is_empty() {
            return Err(Code::InvalidValue);
        }
        let cell = |(index, &bytes): (usize, &u32)| {
            let mut cell = [0; 8];
            // SAFETY: only C makes an `Arguments`, which has a pointer for each of the kernel's arguments, to at
            // least the argument's bytes. The emulator has no arguments of more than 8.
            unsafe {
                let argument = *self.0.add(index);
                if argument.is_null() {
                    return Err(Code::InvalidValue);
                }
                argument.cast::<u8>().copy_to_nonoverlapping(cell.as_mut_ptr(), (bytes as usize).min(8));
            }
            Ok(u64::from_le_bytes(cell))
        };
        sizes.iter().enumerate().map(cell).collect()
    }
}

/// The caller's image of a module, whose length has to be found in it.
#[repr(transparent)]
pub(crate) struct Image(*const u8);

/// How an ELF file begins.
const ELF: &[u8; 4] = b"\x7fELF";
/// Size of the header of a 64-bit ELF file, and of an entry of its section table.
const HEADER: usize = 64;
/// A section that takes no bytes of the file.
const NOBITS: u32 = 8;

impl Image {
    /// An ELF file, as far as its sections and its section table go; `None` if it does not begin as one.
    pub(crate) fn elf<'a>(&self) -> Result<Option<&'a [u8]>, Code> {
        if self.0.is_null() {
            return Err(Code::InvalidValue);
        }
        // SAFETY: only C makes an `Image`, which is a file that the driver can load, or at least begins with bytes
        // that tell that it is none.
        let bytes = |length: usize| unsafe { std::slice::from_raw_parts(self.0, length) };
        if (0..ELF.len()).any(|at| bytes(at + 1)[at] != ELF[at]) {
            return Ok(None);
        }
        let header = bytes(HEADER);
        let number = |from: &[u8], at: usize, size: usize| {
            from[at..at + size].iter().rev().fold(0_u64, |number, &byte| number << 8 | u64::from(byte))
        };
        let (table, entries) = (number(header, 0x28, 8) as usize, number(header, 0x3c, 2) as usize);
        let end = table + entries * HEADER;
        let sections = bytes(end)[table..].chunks_exact(HEADER);
        let filled = sections.filter(|section| number(section, 4, 4) as u32 != NOBITS);
        let ends = filled.map(|section| (number(section, 0x18, 8) + number(section, 0x20, 8)) as usize);
        Ok(Some(bytes(ends.fold(end, usize::max))))
    }

    /// Text that ends with a zero byte.
    pub(crate) fn text<'a>(&self) -> &'a [u8] {
        // SAFETY: as in `elf`; what is no ELF file is text, and has its end.
        unsafe { CStr::from_ptr(self.0.cast()) }.to_bytes()
    }
}
