//! How rows lie in shared memory.
//!
//! Copies fill shared memory lane by lane, so there is no room between rows. Where rows begin in the same banks,
//! those that are read at once must differ in another way: each row's pieces are permuted.

use super::warp;

/// Bytes that a lane copies at once.
pub(super) const PIECE: u32 = 16;

/// So many bytes, loaded at once.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub(super) struct Piece(pub(super) [u32; 4]);

/// Pieces that the 64 banks hold side by side.
const BANKS: u32 = 16;

/// Rows of `pieces` pieces, of which `unit` (1 or 2) stay together: those that a read takes from one row. The unit
/// `u` of row `r` lies in place `u ^ turn(r)`, such that the units `u` of as many successive rows as there are units
/// in the banks lie in different banks.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub(super) pieces: u32,
    pub(super) unit: u32,
}

impl Layout {
    /// Bytes of a row.
    pub(super) const fn pitch(self) -> u32 {
        self.pieces * PIECE
    }

    /// Pieces within which a row's are permuted: the largest power of two that divides both a row and the banks.
    const fn span(self) -> u32 {
        let divisor = self.pieces & self.pieces.wrapping_neg();
        if divisor < BANKS { divisor } else { BANKS }
    }

    /// The bits in which the places of row `row`'s pieces differ from their numbers.
    #[inline(always)]
    pub(super) const fn turn(self, row: u32) -> u32 {
        // So many successive rows begin in different banks.
        let distinct = BANKS / self.span();
        row / distinct % (self.span() / self.unit) * self.unit
    }

    /// Address of piece `piece`, a multiple of the unit, from that of where piece 0 lies. A row starts at a multiple
    /// of the banks' size, or of its own where that is smaller.
    #[inline(always)]
    pub(super) const fn at(self, piece_0: u32, piece: u32) -> u32 {
        let within = piece % self.span();
        (piece_0 ^ (within * PIECE)) + (piece - within) * PIECE
    }

    /// Row and piece that lane `lane` fills in the `part`-th KiB of a sequence of rows.
    #[inline(always)]
    pub(super) const fn filled(self, part: u32, lane: u32) -> (u32, u32) {
        let place = part * warp::SIZE + lane;
        let row = place / self.pieces;
        (row, (place % self.pieces) ^ self.turn(row))
    }
}
