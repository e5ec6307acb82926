//! Tensor maps of K and V, for kernels that copy by them, and words at which blocks meet that merge splits. They lie in
//! device memory, one buffer for each pair of tensors that was run, so that a captured run finds what it was captured
//! with.

use kernels_gpu::abi::BlockShape;
use kernels_gpu::abi::warpgroups::{Layout, NARROW, WIDE, WORD_BYTES, map};

use crate::driver::TensorMap;
use crate::stream::Held;
use crate::{Buffer, Device, Inputs, Plan, Result, Tensor};

/// Pairs of tensors whose maps are kept; then the oldest makes room. What was given to a stream or captured stays alive.
const KEPT: usize = 64;

/// The maps that an executor has made.
#[derive(Default)]
pub(super) struct Maps(Vec<([TensorMap; map::COUNT as usize], Buffer)>);

impl Maps {
    /// Address and holder of the maps for these inputs; `None` where the plan's kernel has none.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) where the driver makes none; what the driver says.
    pub(super) fn find(&mut self, device: &Device, plan: &Plan, inputs: &Inputs<'_>) -> Result<Option<(u64, Held)>> {
        let layout = match plan.problem().dtype.operand() {
            Some(operand) if plan.block_shape() == BlockShape::Warpgroups => Layout::of(operand),
            _ => return Ok(None),
        };
        // Nothing is read of a tensor without elements: any map will do.
        let of = |tensor: &Tensor, box_bytes, tokens| {
            tensor_map(if tensor.elements() == 0 { inputs.q } else { tensor }, box_bytes, tokens)
        };
        let mut maps = [TensorMap::default(); map::COUNT as usize];
        maps[map::K_WIDE as usize] = of(inputs.k, WIDE, layout.k_tokens);
        maps[map::K_NARROW as usize] = of(inputs.k, NARROW, layout.k_tokens);
        maps[map::V as usize] = of(inputs.v, WIDE, layout.v_tokens);
        let known = self.0.iter().position(|(known, _)| *known == maps);
        let buffer = match known {
            Some(index) => &self.0[index].1,
            None => {
                let mut bytes = Vec::new();
                for map in &maps {
                    bytes.extend(device.driver().tensor_map(map)?);
                }
                let words = plan.units() / plan.num_splits() * WORD_BYTES;
                bytes.resize(bytes.len() + words as usize, 0);
                let buffer = Buffer::with_contents(device, &bytes)?;
                if self.0.len() == KEPT {
                    self.0.remove(0);
                }
                self.0.push((maps, buffer));
                &self.0[self.0.len() - 1].1
            }
        };
        Ok(Some((buffer.address(), buffer.hold())))
    }
}

/// The map by which rows of bytes are copied, `box_bytes` of each of `tokens` tokens at once, and swizzled over
/// as many bytes.
fn tensor_map(tensor: &Tensor, box_bytes: u32, tokens: u32) -> TensorMap {
    let size = tensor.dtype().size_of() as u64;
    let [batch, seq, head] = super::strides(tensor).map(|stride| stride * size);
    let (sequences, shape) = match *tensor.shape() {
        [batch, seq, heads, dim] => (batch, [seq, heads, dim]),
        [seq, heads, dim] => (1, [seq, heads, dim]),
        _ => unreachable!("shapes were checked"),
    };
    let [seqs, heads, dim] = shape.map(|size| size as u64);
    let dim = dim * size;
    // The stride of a dimension of size 1 leads nowhere, and may be anything.
    let stride = |count: u64, stride: u64| if count > 1 { stride } else { dim.next_multiple_of(16) };
    TensorMap {
        address: tensor.address(),
        dims: [dim, heads, seqs, sequences as u64],
        strides: [stride(heads, head), stride(seqs, seq), stride(sequences as u64, batch)],
        box_dims: [box_bytes, 1, tokens, 1],
        swizzle: box_bytes,
    }
}
