//! Typed, strided views of device memory.

use std::fmt;
use std::ops::Range;

use crate::{Buffer, DType, Device, Element, Error, Result};

/// A view of a [`Buffer`] with a shape, strides and an element type. Clones and slices share the memory.
#[derive(Clone)]
pub struct Tensor {
    buffer: Buffer,
    /// In bytes.
    offset: usize,
    dtype: DType,
    shape: Vec<usize>,
    /// In elements.
    strides: Vec<usize>,
}

impl Tensor {
    /// A view of `buffer`: element `[i, j, ...]` is `i * strides[0] + j * strides[1] + ...` elements behind the byte
    /// `offset`.
    ///
    /// # Errors
    /// [`Error::Argument`]: `strides` are not as many as `shape`, `offset` is not a multiple of the element's
    /// size, or an element lies outside the buffer.
    pub fn new(buffer: Buffer, offset: usize, dtype: DType, shape: &[usize], strides: &[usize]) -> Result<Self> {
        if strides.len() != shape.len() {
            let given = format!("{} strides", strides.len());
            return Err(Error::argument("strides", given, format_args!("one a dimension: {}", shape.len())));
        }
        if !(buffer.address() as usize).wrapping_add(offset).is_multiple_of(dtype.size_of()) {
            let given = format!("{offset} from address {:#x}", buffer.address());
            return Err(Error::argument("offset", given, format_args!("an address at a multiple of {dtype}'s size")));
        }
        let end = extent(shape, strides)
            .and_then(|elements| elements.checked_mul(dtype.size_of()))
            .and_then(|bytes| bytes.checked_add(offset));
        if end.is_none_or(|end| end > buffer.size()) {
            let given = format!("{shape:?} with strides {strides:?} of {dtype} at byte {offset}");
            return Err(Error::argument("shape", given, format_args!("within the buffer's {} bytes", buffer.size())));
        }
        Ok(Self { buffer, offset, dtype, shape: shape.into(), strides: strides.into() })
    }

    /// A new contiguous tensor with arbitrary contents.
    ///
    /// # Errors
    /// [`Error::Argument`] for a shape whose size overflows, [`Error::OutOfMemory`], or what the driver says.
    pub fn uninit(device: &Device, dtype: DType, shape: &[usize]) -> Result<Self> {
        let bytes = elements(shape)
            .and_then(|elements| elements.checked_mul(dtype.size_of()))
            .ok_or_else(|| Error::argument("shape", format_args!("{shape:?}"), "a size below 2^64 bytes"))?;
        let strides = contiguous_strides(shape);
        Ok(Self { buffer: Buffer::new(device, bytes)?, offset: 0, dtype, shape: shape.into(), strides })
    }

    /// A new contiguous tensor of zeros.
    ///
    /// # Errors
    /// Those of [`Tensor::uninit`].
    pub fn zeros(device: &Device, dtype: DType, shape: &[usize]) -> Result<Self> {
        let tensor = Self::uninit(device, dtype, shape)?;
        tensor.buffer.fill(0)?;
        Ok(tensor)
    }

    /// A new contiguous tensor with these elements, the last dimension running fastest.
    ///
    /// # Errors
    /// [`Error::Argument`] where `shape` has another number of elements, and those of [`Tensor::uninit`].
    pub fn from_host<T: Element>(device: &Device, data: &[T], shape: &[usize]) -> Result<Self> {
        if elements(shape) != Some(data.len()) {
            let given = format!("{} elements", data.len());
            return Err(Error::argument("data", given, format_args!("as many as the shape {shape:?} has")));
        }
        let tensor = Self::uninit(device, T::DTYPE, shape)?;
        tensor.buffer.write(0, bytemuck::cast_slice(data))?;
        Ok(tensor)
    }

    /// The elements in the order of the shape, the last dimension running fastest, whatever the strides are. Waits
    /// for all work on the device.
    ///
    /// # Errors
    /// [`Error::Argument`] where `T` is another type than the tensor's, or what the driver says.
    pub fn to_host<T: Element>(&self) -> Result<Vec<T>> {
        if T::DTYPE != self.dtype {
            return Err(Error::argument("T", T::DTYPE, self.dtype));
        }
        let mut spanned = vec![T::zeroed(); self.extent()];
        self.buffer.read(self.offset, bytemuck::cast_slice_mut(&mut spanned))?;
        if self.strides == contiguous_strides(&self.shape) {
            return Ok(spanned);
        }
        let mut gathered = Vec::with_capacity(self.elements());
        gather(&spanned, 0, &self.shape, &self.strides, &mut gathered);
        Ok(gathered)
    }

    /// A view of the indices `range` of dimension `dim`.
    ///
    /// # Errors
    /// [`Error::Argument`] where there is no such dimension or index.
    pub fn slice(&self, dim: usize, range: Range<usize>) -> Result<Self> {
        let Some(&size) = self.shape.get(dim) else {
            return Err(Error::argument("dim", dim, format_args!("below {}", self.shape.len())));
        };
        if range.start > range.end || range.end > size {
            return Err(Error::argument("range", format_args!("{range:?}"), format_args!("within 0..{size}")));
        }
        let mut view = self.clone();
        view.shape[dim] = range.len();
        if view.elements() > 0 {
            view.offset += range.start * self.strides[dim] * self.dtype.size_of();
        }
        Ok(view)
    }

    /// The memory that it is a view of.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Where its first element lies in the buffer, in bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Device address of its first element.
    pub fn address(&self) -> u64 {
        self.buffer.address() + self.offset as u64
    }

    /// Type of its elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Its sizes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Distance between neighbours of each dimension in elements.
    pub fn strides(&self) -> &[usize] {
        &self.strides
    }

    /// Number of its elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Elements from the first to the last one, gaps included.
    pub(crate) fn extent(&self) -> usize {
        extent(&self.shape, &self.strides).expect("checked when the tensor was made")
    }

    /// Device addresses from the first to the last byte, gaps included.
    pub(crate) fn span(&self) -> Range<u64> {
        let bytes = self.extent() * self.dtype.size_of();
        self.address()..self.address() + bytes as u64
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {:?}", self.dtype, self.shape)?;
        if self.strides != contiguous_strides(&self.shape) {
            write!(f, " with strides {:?}", self.strides)?;
        }
        write!(f, " on {})", self.buffer.device().name())
    }
}

/// Strides of a tensor without gaps, the last dimension running fastest.
pub(crate) fn contiguous_strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for dim in (1..shape.len()).rev() {
        strides[dim - 1] = strides[dim] * shape[dim].max(1);
    }
    strides
}

fn elements(shape: &[usize]) -> Option<usize> {
    // Sizes of 0 count as 1 on the way, so that the strides of an empty tensor do not overflow either.
    let product = shape.iter().try_fold(1_usize, |product, &size| product.checked_mul(size.max(1)))?;
    Some(if shape.contains(&0) { 0 } else { product })
}

/// Elements from the first to the last one; 0 for an empty tensor.
fn extent(shape: &[usize], strides: &[usize]) -> Option<usize> {
    if elements(shape)? == 0 {
        return Some(0);
    }
    shape
        .iter()
        .zip(strides)
        .try_fold(1_usize, |end, (&size, &stride)| end.checked_add((size - 1).checked_mul(stride)?))
}

fn gather<T: Copy>(spanned: &[T], start: usize, shape: &[usize], strides: &[usize], gathered: &mut Vec<T>) {
    match (shape, strides) {
        ([size, shape @ ..], [stride, strides @ ..]) => {
            for index in 0..*size {
                gather(spanned, start + index * stride, shape, strides, gathered);
            }
        }
        _ => gathered.push(spanned[start]),
    }
}
