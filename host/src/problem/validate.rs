//! Which problems are none: sizes, types, scales, offsets, lengths, tables.

use super::{Descale, KvLens, Problem};
use crate::{DType, Error, KvLayout, Offsets, Queries, Result};

/// Largest value of a size that kernels hold in 32 bits.
const MAX_SIZE: usize = i32::MAX as usize;

impl Problem {
    /// Checks what holds for every device and every set of kernels.
    ///
    /// # Errors
    /// [`Error::Argument`] with the field's name.
    pub fn validate(&self) -> Result<()> {
        let sizes = [
            ("batch", self.batch),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("sq", self.sq),
            ("sk", self.sk),
            ("head_dim_qk", self.head_dim_qk),
            ("head_dim_v", self.head_dim_v),
        ];
        for (name, size) in sizes {
            if size > MAX_SIZE {
                return Err(Error::argument(name, size, format_args!("at most {MAX_SIZE}")));
            }
        }
        for (name, dim) in [("head_dim_qk", self.head_dim_qk), ("head_dim_v", self.head_dim_v)] {
            let multiple = self.dim_multiple();
            if dim == 0 || !dim.is_multiple_of(multiple) {
                return Err(Error::argument(name, dim, format_args!("a multiple of {multiple}, at least {multiple}")));
            }
        }
        let divides = if self.kv_heads == 0 { self.heads == 0 } else { self.heads.is_multiple_of(self.kv_heads) };
        if !divides {
            let allowed = format!("a multiple of kv_heads ({})", self.kv_heads);
            return Err(Error::argument("heads", self.heads, allowed));
        }
        if self.sq + self.sk > MAX_SIZE {
            let given = format!("{} + {}", self.sq, self.sk);
            return Err(Error::argument("sq + sk", given, format_args!("at most {MAX_SIZE}")));
        }
        // Rows are counted in 32 bits by the kernels, all heads and sequences together (one sequence's also where there is none).
        let rows = [self.batch.max(1), self.heads, self.sq].iter().try_fold(1_usize, |rows, &n| rows.checked_mul(n));
        if rows.is_none_or(|rows| rows > MAX_SIZE) {
            let given = format!("{} * {} * {}", self.batch, self.heads, self.sq);
            return Err(Error::argument("batch * heads * sq", given, format_args!("at most {MAX_SIZE}")));
        }
        if self.dtype.operand().is_none() {
            return Err(Error::argument("dtype", self.dtype, "bf16, f16 or e4m3"));
        }
        if self.dtype == DType::E4m3 {
            if self.o_dtype.output().is_none() {
                return Err(Error::argument("o_dtype", self.o_dtype, "bf16, f16 or f32 with e4m3"));
            }
        } else {
            if self.o_dtype != self.dtype && self.o_dtype != DType::F32 {
                return Err(Error::argument("o_dtype", self.o_dtype, format_args!("{} or f32", self.dtype)));
            }
            for (name, descale, _) in self.descales_given() {
                if descale != Descale::PerTensor {
                    return Err(Error::argument(
                        name,
                        descale,
                        format_args!("none with {}: only e4m3 has factors", self.dtype),
                    ));
                }
            }
        }
        if let Some(scale) = self.scale
            && !(scale * std::f32::consts::LOG2_E).is_finite()
        {
            return Err(Error::argument("scale", scale, "finite, also when multiplied by log2(e)"));
        }
        if let Some(softcap) = self.softcap {
            let factor = self.effective_scale() / softcap * 2.0 * std::f32::consts::LOG2_E;
            let cap = softcap * std::f32::consts::LOG2_E;
            if !(softcap > 0.0 && cap.is_finite() && factor.is_finite()) {
                let allowed = "above 0 and finite, also when multiplied by log2(e) and when scale is divided by it";
                return Err(Error::argument("softcap", softcap, allowed));
            }
        }
        self.validate_queries()?;
        self.validate_kv()
    }

    fn validate_queries(&self) -> Result<()> {
        let Queries::Packed { total, cu_seqlens } = &self.queries else { return Ok(()) };
        cu_seqlens.validate("cu_seqlens_q", self.batch, *total, ("sq", self.sq))?;
        // Packed sequences are at most the padded ones, whose rows were counted above.
        if *total > self.batch * self.sq {
            let given = format!("{total} queries in all");
            let allowed = format!("at most batch * sq ({} * {})", self.batch, self.sq);
            return Err(Error::argument("total_q", given, allowed));
        }
        Ok(())
    }

    fn validate_kv(&self) -> Result<()> {
        if let KvLayout::Packed { total, cu_seqlens } = &self.kv {
            if *total > MAX_SIZE {
                return Err(Error::argument("total_kv", total, format_args!("at most {MAX_SIZE}")));
            }
            cu_seqlens.validate("cu_seqlens_kv", self.batch, *total, ("sk", self.sk))?;
        }
        self.validate_lens()?;
        if let KvLayout::Paged { pages, page_size, table } = &self.kv {
            if *pages > MAX_SIZE {
                return Err(Error::argument("pages", pages, format_args!("at most {MAX_SIZE}")));
            }
            let tokens = (0..self.batch).map(|index| self.lengths(index).keys);
            table.validate((*pages, *page_size), self.sk, tokens)?;
        }
        Ok(())
    }

    fn validate_lens(&self) -> Result<()> {
        let KvLens::Host(lens) = &self.kv_lens else { return Ok(()) };
        if lens.len() != self.batch {
            let given = format!("{} lengths", lens.len());
            return Err(Error::argument("kv_lens", given, format_args!("one a sequence: {}", self.batch)));
        }
        for (index, &len) in lens.iter().enumerate() {
            let given = || format!("{len} for sequence {index}");
            if len as usize > self.sk {
                return Err(Error::argument("kv_lens", given(), format_args!("at most sk ({})", self.sk)));
            }
            if let KvLayout::Packed { cu_seqlens: Offsets::Host(offsets), .. } = &self.kv
                && len > offsets[index + 1] - offsets[index]
            {
                let room = offsets[index + 1] - offsets[index];
                return Err(Error::argument("kv_lens", given(), format_args!("at most what is packed ({room})")));
            }
        }
        Ok(())
    }
}
