//! Data to measure on: one buffer of random values that all tensors of all problems are views of, so that a problem
//! costs no upload, and what the reference knows of it.

use splitkv::half::{bf16, f16};
use splitkv::{Buffer, DType, Device, E4m3, Problem, Tensor};

/// Elements after which the data repeats: odd, so that no two rows of a tensor are the same.
const PERIOD: usize = (1 << 22) - 1;
/// Tensors start at multiples of this many elements.
const ALIGNMENT: usize = 128;

/// Values of mean 0 and deviation 1, bell-shaped, as `dtype` holds them: as f32, and as bytes.
fn block(dtype: DType) -> (Vec<f32>, Vec<u8>) {
    let mut rng = fastrand::Rng::with_seed(0xa77e);
    // The sum of twelve uniform values has deviation 1.
    let values = (0..PERIOD).map(|_| (0..12).map(|_| rng.f32()).sum::<f32>() - 6.0);
    if dtype == DType::E4m3 {
        let block: Vec<E4m3> = values.map(E4m3::from_f32).collect();
        (block.iter().map(|x| x.to_f32()).collect(), block.iter().map(|x| x.to_bits()).collect())
    } else if dtype == DType::F16 {
        let block: Vec<f16> = values.map(f16::from_f32).collect();
        (block.iter().map(|x| x.to_f32()).collect(), block.iter().flat_map(|x| x.to_le_bytes()).collect())
    } else {
        let block: Vec<bf16> = values.map(bf16::from_f32).collect();
        (block.iter().map(|x| x.to_f32()).collect(), block.iter().flat_map(|x| x.to_le_bytes()).collect())
    }
}

/// Fills a buffer with random values of 16 bits.
pub(crate) fn fill(buffer: &Buffer) -> splitkv::Result<()> {
    fill_with(buffer, &block(DType::Bf16).1)
}

fn fill_with(buffer: &Buffer, block: &[u8]) -> splitkv::Result<()> {
    for start in (0..buffer.size()).step_by(block.len()) {
        let length = block.len().min(buffer.size() - start);
        buffer.write(start, &block[..length])?;
    }
    Ok(())
}

/// The buffer.
pub(crate) struct Arena {
    buffer: Buffer,
    dtype: DType,
    block: Vec<f32>,
    /// Of 8-bit elements: the factor 1.
    factor: Option<Tensor>,
}

/// Q, K, V and O of a problem. The inputs are views of an [`Arena`].
pub(crate) struct Set {
    pub(crate) q: Tensor,
    pub(crate) k: Tensor,
    pub(crate) v: Tensor,
    pub(crate) o: Tensor,
    /// Where the problem asks for it.
    pub(crate) lse: Option<Tensor>,
    /// Of Q, K and V, where their elements have 8 bits: 1.
    pub(crate) factor: Option<Tensor>,
}

impl Arena {
    /// Room for `sets` sets of inputs of each problem, one problem at a time. The problems have one type.
    pub(crate) fn new<'a>(
        device: &Device,
        dtype: DType,
        problems: impl IntoIterator<Item = (&'a Problem, usize)>,
    ) -> splitkv::Result<Self> {
        let elements = problems.into_iter().map(|(problem, sets)| sets * starts(problem)[3]).max().unwrap_or(0);
        let (block, bytes) = block(dtype);
        let buffer = Buffer::new(device, elements * dtype.size_of())?;
        fill_with(&buffer, &bytes)?;
        let factor = (dtype == DType::E4m3).then(|| {
            let factor = Tensor::uninit(device, DType::F32, &[1])?;
            factor.buffer().write(0, &1f32.to_le_bytes()).map(|()| factor)
        });
        Ok(Self { buffer, dtype, block, factor: factor.transpose()? })
    }

    /// Set number `index`, which shares no memory with the others.
    pub(crate) fn set(&self, problem: &Problem, index: usize) -> splitkv::Result<Set> {
        let starts = starts(problem);
        let view = |tensor: usize, shape: &[usize]| {
            let offset = (index * starts[3] + starts[tensor]) * self.dtype.size_of();
            let mut strides = vec![1; shape.len()];
            for dim in (1..shape.len()).rev() {
                strides[dim - 1] = strides[dim] * shape[dim];
            }
            Tensor::new(self.buffer.clone(), offset, self.dtype, shape, &strides)
        };
        Ok(Set {
            q: view(0, &problem.q_shape())?,
            k: view(1, &problem.k_shape())?,
            v: view(2, &problem.v_shape())?,
            o: Tensor::uninit(self.buffer.device(), problem.o_dtype, &problem.o_shape())?,
            lse: problem
                .lse
                .then(|| Tensor::uninit(self.buffer.device(), DType::F32, &problem.lse_shape()))
                .transpose()?,
            factor: self.factor.clone(),
        })
    }

    /// The `count` values from element `first` of a tensor of the arena.
    pub(crate) fn values(&self, tensor: &Tensor, first: usize, count: usize) -> impl Iterator<Item = f64> {
        let start = tensor.offset() / self.dtype.size_of() + first;
        (start..start + count).map(|index| f64::from(self.block[index % PERIOD]))
    }
}

/// Where Q, K and V of a set start, and how long the set is, in elements.
fn starts(problem: &Problem) -> [usize; 4] {
    let mut starts = [0; 4];
    for (tensor, shape) in [problem.q_shape(), problem.k_shape(), problem.v_shape()].iter().enumerate() {
        starts[tensor + 1] = (starts[tensor] + shape.iter().product::<usize>()).next_multiple_of(ALIGNMENT);
    }
    starts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_sees_what_the_device_has() {
        let device = Device::open("emulator:sm_90a").unwrap();
        for dtype in [DType::Bf16, DType::F16] {
            let problem = Problem::new(2, 4, 2, 1, 50, 72, dtype).head_dim_v(64);
            let arena = Arena::new(&device, dtype, [(&problem, 3)]).unwrap();
            let set = arena.set(&problem, 2).unwrap();
            let on_device: Vec<f64> = match dtype {
                DType::F16 => set.v.to_host::<f16>().unwrap().iter().map(|x| x.to_f64()).collect(),
                _ => set.v.to_host::<bf16>().unwrap().iter().map(|x| x.to_f64()).collect(),
            };
            assert_eq!(on_device.len(), 2 * 50 * 2 * 64);
            assert!(arena.values(&set.v, 0, on_device.len()).eq(on_device.iter().copied()));
            assert!(arena.values(&set.v, 64, 64).eq(on_device[64..128].iter().copied()));
            let (mean, square) = on_device.iter().fold((0.0, 0.0), |(m, s), x| (m + x, s + x * x));
            let count = on_device.len() as f64;
            assert!((mean / count).abs() < 0.05 && (square / count - 1.0).abs() < 0.05);
        }
    }

    #[test]
    fn sets_lie_side_by_side() {
        let device = Device::open("emulator:sm_90a").unwrap();
        let problem = Problem::new(1, 3, 1, 1, 5, 8, DType::Bf16);
        assert_eq!(starts(&problem), [0, 128, 256, 384]);
        let arena = Arena::new(&device, DType::Bf16, [(&problem, 2)]).unwrap();
        let (first, second) = (arena.set(&problem, 0).unwrap(), arena.set(&problem, 1).unwrap());
        assert_eq!(second.q.address() - first.q.address(), 384 * 2);
        assert!(arena.set(&problem, 2).is_err());
    }
}
