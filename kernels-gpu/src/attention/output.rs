//! Where a packed row's results go, and how they are written.

use crate::abi::Output;
use crate::gpu::{Float4, divide, math};

/// Natural logarithm of 2.
pub(super) const LN_2: f32 = core::f32::consts::LN_2;

/// Final results: O in the caller's layout and type, and the LSE where asked for.
pub(super) struct Final {
    pub(super) o: *mut u8,
    pub(super) lse: *mut u8,
    pub(super) o_stride_batch: u64,
    pub(super) o_stride_seq: u64,
    pub(super) o_stride_head: u64,
    pub(super) sq: u32,
    pub(super) kv_heads: u32,
    pub(super) group: u32,
    pub(super) o_dtype: u32,
}

/// A row's place in the caller's tensors.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// Element offset of the row in O.
    o: u64,
    /// Element offset in the LSE.
    lse: u64,
}

impl Final {
    /// Place of packed row `row` of a KV head.
    #[inline(always)]
    pub(super) fn place(&self, batch: u32, kv_head: u32, row: u32) -> Place {
        // SAFETY: group is not 0, since there is a row.
        let (query, member) = unsafe { divide(row, self.group) };
        let head = u64::from(kv_head) * u64::from(self.group) + u64::from(member);
        let (batch, query) = (u64::from(batch), u64::from(query));
        let heads = u64::from(self.kv_heads) * u64::from(self.group);
        Place {
            o: batch * self.o_stride_batch + query * self.o_stride_seq + head * self.o_stride_head,
            lse: (batch * heads + head) * u64::from(self.sq) + query,
        }
    }

    /// Writes four dims from `dim` on.
    ///
    /// # Safety
    /// The row exists and the dims are in range; rows of O are aligned to 16 bytes.
    #[inline(always)]
    pub(super) unsafe fn store(&self, place: Place, dim: u32, x: [f32; 4]) {
        let element = (place.o + u64::from(dim)) as usize;
        // SAFETY: the caller's promise.
        unsafe {
            if self.o_dtype == Output::F32 as u32 {
                self.o.cast::<f32>().add(element).cast::<Float4>().write(Float4(x));
            } else {
                let pack = |low, high| {
                    if self.o_dtype == Output::Bf16 as u32 {
                        math::pack_bf16(low, high)
                    } else {
                        math::pack_f16(low, high)
                    }
                };
                let packed = u64::from(pack(x[0], x[1])) | u64::from(pack(x[2], x[3])) << 32;
                self.o.add(2 * element).cast::<u64>().write(packed);
            }
        }
    }

    /// Writes the LSE, where asked for.
    ///
    /// # Safety
    /// The row exists.
    #[inline(always)]
    pub(super) unsafe fn store_lse(&self, place: Place, lse: f32) {
        if !self.lse.is_null() {
            // SAFETY: the caller's promise.
            unsafe { self.lse.cast::<f32>().add(place.lse as usize).write(lse) };
        }
    }
}
