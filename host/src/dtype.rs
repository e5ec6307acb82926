//! Element types of tensors.

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};
use kernels_gpu::abi::{Operand, Output};

use crate::{E4m3, Error};

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
    /// 8-bit float with 4 exponent and 3 mantissa bits, no infinities, largest value 448 ([`E4m3`]; elsewhere called
    /// e4m3fn or float8_e4m3fn). The only 8-bit float that there is: e5m2 and the fnuz formats are others.
    E4m3,
}

impl DType {
    /// Size of an element in bytes.
    pub const fn size_of(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 | Self::I32 => 4,
            Self::E4m3 => 1,
        }
    }

    /// The type as Q, K and V have it, if kernels take it there.
    pub(crate) const fn operand(self) -> Option<Operand> {
        match self {
            Self::Bf16 => Some(Operand::Bf16),
            Self::F16 => Some(Operand::F16),
            Self::E4m3 => Some(Operand::E4m3),
            Self::F32 | Self::I32 => None,
        }
    }

    /// The type as O has it, if kernels write it.
    pub(crate) const fn output(self) -> Option<Output> {
        match self {
            Self::F32 => Some(Output::F32),
            Self::Bf16 => Some(Output::Bf16),
            Self::F16 => Some(Output::F16),
            Self::I32 | Self::E4m3 => None,
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
            Self::E4m3 => "e4m3",
        })
    }
}

impl FromStr for DType {
    type Err = Error;

    /// The type of this name: as it is displayed, or as PyTorch and JAX spell it.
    ///
    /// # Errors
    /// [`Error::Argument`]. Other 8-bit floats are refused by their names, so that none is taken for [`DType::E4m3`].
    fn from_str(name: &str) -> Result<Self, Error> {
        const ALLOWED: &str = "bf16, f16, f32, i32, e4m3";
        match name {
            "bf16" | "bfloat16" => Ok(Self::Bf16),
            "f16" | "float16" => Ok(Self::F16),
            "f32" | "float32" => Ok(Self::F32),
            "i32" | "int32" => Ok(Self::I32),
            "e4m3" | "e4m3fn" | "float8_e4m3fn" => Ok(Self::E4m3),
            "e5m2" | "float8_e5m2" => {
                let allowed = format_args!("{ALLOWED}; e5m2 has 2 mantissa bits and other values, and no kernels");
                Err(Error::argument("dtype", name, allowed))
            }
            "e4m3fnuz" | "float8_e4m3fnuz" | "e5m2fnuz" | "float8_e5m2fnuz" => {
                let allowed = format_args!(
                    "{ALLOWED}; the fnuz formats of gfx942 have another exponent bias, so that the same bytes are \
                     other numbers: convert to e4m3 (OCP, e4m3fn)"
                );
                Err(Error::argument("dtype", name, allowed))
            }
            _ => Err(Error::argument("dtype", name, ALLOWED)),
        }
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
elements! { bf16 => Bf16, f16 => F16, f32 => F32, i32 => I32, E4m3 => E4m3, }
