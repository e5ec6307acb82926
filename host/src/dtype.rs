//! Element types of tensors.

use std::fmt;

use half::{bf16, f16};
use kernels_gpu::abi::{Operand, Output};

/// Type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// bfloat16 ([`half::bf16`]).
    Bf16,
    /// IEEE binary16 ([`half::f16`]).
    F16,
    /// IEEE binary32.
    F32,
    /// 32-bit signed integer.
    I32,
}

impl DType {
    /// Size of an element in bytes.
    pub const fn size_of(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 | Self::I32 => 4,
        }
    }

    /// The type as Q, K and V have it, if kernels take it there.
    pub(crate) const fn operand(self) -> Option<Operand> {
        match self {
            Self::Bf16 => Some(Operand::Bf16),
            Self::F16 => Some(Operand::F16),
            Self::F32 | Self::I32 => None,
        }
    }

    /// The type as O has it, if kernels write it.
    pub(crate) const fn output(self) -> Option<Output> {
        match self {
            Self::F32 => Some(Output::F32),
            Self::Bf16 => Some(Output::Bf16),
            Self::F16 => Some(Output::F16),
            Self::I32 => None,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::I32 => "i32",
        })
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A host type that is an element of a tensor.
pub trait Element: bytemuck::Pod + sealed::Sealed + Send + Sync {
    /// The element type that it is.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($host:ty => $dtype:ident,)*) => {$(
        impl sealed::Sealed for $host {}
        impl Element for $host {
            const DTYPE: DType = DType::$dtype;
        }
    )*};
}
elements! { bf16 => Bf16, f16 => F16, f32 => F32, i32 => I32, }
