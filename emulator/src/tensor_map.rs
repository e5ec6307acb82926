//! Tensor maps: what a copy of a box of a tensor needs to know, as an object of 128 bytes in global memory.
//!
//! On a GPU the object is opaque, and the driver makes it. Here it has a format of its own, little-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | [`MAGIC`] |
//! | 8, 9, 10 | rank, bytes of an element, swizzle span in bytes (0: none) |
//! | 16..24 | address of the tensor |
//! | 24..64 | elements of each dimension, the innermost first |
//! | 64..96 | bytes from one element to the next in each dimension but the innermost |
//! | 96..106 | elements of the box in each dimension, 16 bits each |

use crate::Error;

/// Size of the object, and what its address is a multiple of.
pub(crate) const BYTES: usize = 128;
pub(crate) const ALIGN: u64 = 64;
/// How the object begins.
const MAGIC: [u8; 8] = *b"splitkvT";
/// Most dimensions.
pub(crate) const RANK: usize = 5;

/// How 16-byte pieces of shared memory are exchanged, so that the rows of a tile lie in different banks. The pieces'
/// numbers within a span are combined with address bits 7 and up by exclusive or.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Swizzle {
    /// Not at all.
    #[default]
    None,
    /// Pairs of pieces: bit 4 with bit 7.
    Span32,
    /// Four pieces: bits 4 and 5 with bits 7 and 8.
    Span64,
    /// Eight pieces: bits 4 to 6 with bits 7 to 9.
    Span128,
}

impl Swizzle {
    const ALL: [Self; 4] = [Self::None, Self::Span32, Self::Span64, Self::Span128];

    /// Bytes within which pieces are exchanged; 0 if none are.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Span32 => 32,
            Self::Span64 => 64,
            Self::Span128 => 128,
        }
    }

    /// Where the byte that would lie at a shared address lies.
    pub(crate) fn apply(self, address: u32) -> u32 {
        let pieces = self.bytes() / 16;
        address ^ (address >> 7 & pieces.saturating_sub(1)) << 4
    }
}

/// A tensor in global memory, and the box of it that one copy moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// Address of the first element, a multiple of 16.
    pub address: u64,
    /// Bytes of an element: 1, 2, 4 or 8.
    pub element_bytes: u32,
    /// Elements of each of 1 to 5 dimensions, the innermost first: 1 to 2^32.
    pub dims: Vec<u64>,
    /// Bytes from one element to the next in each dimension but the innermost: multiples of 16 below 2^40.
    pub strides: Vec<u64>,
    /// Elements of the box in each dimension: 1 to 256. Along the innermost they take a multiple of 16 bytes, and at
    /// most the swizzle's span.
    pub box_dims: Vec<u32>,
    /// How the box lies in shared memory.
    pub swizzle: Swizzle,
}

impl TensorMap {
    /// The object, to be copied to global memory.
    ///
    /// # Errors
    /// [`Error::TensorMap`] names the argument that is not allowed.
    pub fn encode(&self) -> Result<[u8; BYTES], Error> {
        self.check()?;
        let mut bytes = [0; BYTES];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &MAGIC);
        put(8, &[self.dims.len() as u8, self.element_bytes as u8, self.swizzle.bytes() as u8]);
        put(16, &self.address.to_le_bytes());
        self.dims.iter().enumerate().for_each(|(i, dim)| put(24 + 8 * i, &dim.to_le_bytes()));
        self.strides.iter().enumerate().for_each(|(i, stride)| put(64 + 8 * i, &stride.to_le_bytes()));
        self.box_dims.iter().enumerate().for_each(|(i, &dim)| put(96 + 2 * i, &(dim as u16).to_le_bytes()));
        Ok(bytes)
    }

    /// What an object holds; `None` if it is none.
    pub(crate) fn decode(bytes: &[u8; BYTES]) -> Option<Self> {
        let wide = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let rank = usize::from(bytes[8]);
        if bytes[..8] != MAGIC || !(1..=RANK).contains(&rank) {
            return None;
        }
        let map = Self {
            address: wide(16),
            element_bytes: bytes[9].into(),
            dims: (0..rank).map(|i| wide(24 + 8 * i)).collect(),
            strides: (1..rank).map(|i| wide(56 + 8 * i)).collect(),
            box_dims: (0..rank).map(|i| u16::from_le_bytes([bytes[96 + 2 * i], bytes[97 + 2 * i]]).into()).collect(),
            swizzle: Swizzle::ALL.into_iter().find(|swizzle| swizzle.bytes() == u32::from(bytes[10]))?,
        };
        map.check().ok()?;
        Some(map)
    }

    /// Bytes of the box in shared memory.
    pub fn box_bytes(&self) -> u32 {
        self.box_dims.iter().product::<u32>() * self.element_bytes
    }

    fn check(&self) -> Result<(), Error> {
        let refuse = |argument: &'static str, given: String, allowed: &'static str| {
            Err(Error::TensorMap { argument, given, allowed })
        };
        let rank = self.dims.len();
        if !(1..=RANK).contains(&rank) {
            return refuse("the rank", rank.to_string(), "1 to 5");
        }
        if self.strides.len() != rank - 1 || self.box_dims.len() != rank {
            let given = format!("{} strides and {} box dimensions", self.strides.len(), self.box_dims.len());
            return refuse("the rank", given, "one stride less than dimensions, and as many box dimensions");
        }
        if !matches!(self.element_bytes, 1 | 2 | 4 | 8) {
            return refuse("the element", format!("{} bytes", self.element_bytes), "1, 2, 4 or 8 bytes");
        }
        if !self.address.is_multiple_of(16) {
            return refuse("the address", format!("{:#x}", self.address), "a multiple of 16");
        }
        if let Some(dim) = self.dims.iter().find(|dim| !(1..=1 << 32).contains(*dim)) {
            return refuse("a dimension", dim.to_string(), "1 to 2^32");
        }
        if let Some(stride) = self.strides.iter().find(|&&stride| stride % 16 != 0 || stride >= 1 << 40) {
            return refuse("a stride", format!("{stride} bytes"), "a multiple of 16 below 2^40");
        }
        if let Some(dim) = self.box_dims.iter().find(|dim| !(1..=256).contains(*dim)) {
            return refuse("a box dimension", dim.to_string(), "1 to 256");
        }
        let row = self.box_dims[0] * self.element_bytes;
        if !row.is_multiple_of(16) {
            return refuse("the box's innermost dimension", format!("{row} bytes"), "a multiple of 16 bytes");
        }
        if self.swizzle != Swizzle::None && row > self.swizzle.bytes() {
            return refuse("the box's innermost dimension", format!("{row} bytes"), "at most the swizzle's span");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> TensorMap {
        TensorMap {
            address: 0x7000_0000_0010,
            element_bytes: 2,
            dims: vec![128, 1 << 32, 3],
            strides: vec![256, 1 << 39],
            box_dims: vec![64, 256, 1],
            swizzle: Swizzle::Span128,
        }
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let bytes = map().encode().unwrap();
        assert_eq!(TensorMap::decode(&bytes), Some(map()));
        assert_eq!(map().box_bytes(), 64 * 256 * 2);
        assert_eq!(TensorMap::decode(&[0; 128]), None);
    }

    #[test]
    fn what_is_not_allowed_is_named() {
        let refused = |change: fn(&mut TensorMap)| {
            let mut map = map();
            change(&mut map);
            match map.encode() {
                Err(Error::TensorMap { argument, .. }) => argument,
                other => panic!("expected a refusal, got {other:?}"),
            }
        };
        assert_eq!(refused(|m| m.dims.clear()), "the rank");
        assert_eq!(refused(|m| m.strides.clear()), "the rank");
        assert_eq!(refused(|m| m.element_bytes = 3), "the element");
        assert_eq!(refused(|m| m.address += 8), "the address");
        assert_eq!(refused(|m| m.dims[1] = 0), "a dimension");
        assert_eq!(refused(|m| m.strides[0] = 8), "a stride");
        assert_eq!(refused(|m| m.strides[1] = 1 << 40), "a stride");
        assert_eq!(refused(|m| m.box_dims[1] = 257), "a box dimension");
        assert_eq!(refused(|m| m.box_dims[0] = 4), "the box's innermost dimension");
        assert_eq!(refused(|m| m.box_dims[0] = 128), "the box's innermost dimension");
    }

    #[test]
    fn swizzles_exchange_pieces_within_their_span() {
        assert_eq!(Swizzle::Span128.apply(0x3a8), 0x3a8 ^ 0x70);
        assert_eq!(Swizzle::Span64.apply(0x3a8), 0x3a8 ^ 0x30);
        assert_eq!(Swizzle::Span32.apply(0x3a8), 0x3a8 ^ 0x10);
        assert_eq!(Swizzle::None.apply(0x3a8), 0x3a8);
    }
}
