//! Views of device memory.

use half::bf16;

use super::{device, refused};
use crate::{Buffer, DType, Error, Target, Tensor};

#[test]
fn data_comes_back_in_the_order_of_the_shape() {
    let (device, _) = device(Target::Sm90a);
    let data: Vec<i32> = (0..24).collect();
    let tensor = Tensor::from_host(&device, &data, &[2, 3, 4]).unwrap();
    assert_eq!((tensor.strides(), tensor.elements()), (&[12, 4, 1][..], 24));
    assert_eq!(tensor.to_host::<i32>().unwrap(), data);
    let part = tensor.slice(1, 1..3).unwrap().slice(2, 2..3).unwrap();
    assert_eq!(part.to_host::<i32>().unwrap(), [6, 10, 18, 22]);
    let transposed = Tensor::new(tensor.buffer().clone(), 0, DType::I32, &[4, 2], &[1, 12]).unwrap();
    assert_eq!(transposed.to_host::<i32>().unwrap(), [0, 12, 1, 13, 2, 14, 3, 15]);
    let repeated = Tensor::new(tensor.buffer().clone(), 8, DType::I32, &[3], &[0]).unwrap();
    assert_eq!(repeated.to_host::<i32>().unwrap(), [2, 2, 2]);
    assert!(tensor.slice(0, 2..2).unwrap().to_host::<i32>().unwrap().is_empty());

    let halves = Tensor::from_host(&device, &[bf16::ONE; 3], &[3]).unwrap();
    assert_eq!(halves.to_host::<bf16>().unwrap(), [bf16::ONE; 3]);
    assert_eq!(Tensor::zeros(&device, DType::F32, &[2, 2]).unwrap().to_host::<f32>().unwrap(), [0.0; 4]);
}

#[test]
fn views_outside_are_refused() {
    let (device, _) = device(Target::Sm90a);
    let buffer = Buffer::new(&device, 40).unwrap();
    let new = |offset, shape: &[usize], strides: &[usize]| {
        refused(Tensor::new(buffer.clone(), offset, DType::F32, shape, strides)).0
    };
    assert!(Tensor::new(buffer.clone(), 8, DType::F32, &[2, 4], &[4, 1]).is_ok());
    assert_eq!(new(12, &[2, 4], &[4, 1]), "shape");
    assert_eq!(new(0, &[2, 4], &[7, 1]), "shape");
    assert_eq!(new(2, &[1], &[1]), "offset");
    assert_eq!(new(0, &[2, 4], &[4]), "strides");
    assert_eq!(new(usize::MAX - 3, &[1], &[1]), "shape");
    assert_eq!(new(0, &[usize::MAX, 3], &[1, 1]), "shape");
    assert_eq!(new(0, &[2, 2], &[usize::MAX, 1]), "shape");
    assert_eq!(new(44, &[0], &[1]), "shape");
    // Strides of an empty tensor lead nowhere.
    assert!(Tensor::new(buffer.clone(), 40, DType::F32, &[0, 5], &[1 << 40, 1]).is_ok());

    let tensor = Tensor::zeros(&device, DType::F32, &[2, 4]).unwrap();
    assert_eq!(refused(tensor.slice(2, 0..1)).0, "dim");
    assert_eq!(refused(tensor.slice(1, 3..5)).0, "range");
    #[expect(clippy::reversed_empty_ranges, reason = "what is refused")]
    let reversed = tensor.slice(1, 3..2);
    assert_eq!(refused(reversed).0, "range");
    assert_eq!(refused(tensor.to_host::<i32>()).0, "T");
    assert_eq!(refused(Tensor::from_host(&device, &[1.0_f32; 3], &[2, 2])).0, "data");
    assert_eq!(refused(Tensor::uninit(&device, DType::F32, &[usize::MAX, 2])).0, "shape");
}

#[test]
fn buffers_check_ranges_and_memory() {
    let (device, recorder) = device(Target::Sm90a);
    let buffer = Buffer::new(&device, 10).unwrap();
    assert_eq!(refused(buffer.write(8, &[0; 3])).0, "offset");
    assert_eq!(refused(buffer.read(usize::MAX, &mut [0; 3])).0, "offset");
    buffer.fill(7).unwrap();
    buffer.write(9, &[1]).unwrap();
    let mut bytes = [0; 3];
    buffer.read(7, &mut bytes).unwrap();
    assert_eq!(bytes, [7, 7, 1]);
    let empty = Buffer::new(&device, 0).unwrap();
    empty.write(0, &[]).unwrap();
    empty.fill(1).unwrap();
    assert_eq!(empty.address(), 0);
    let large = Buffer::new(&device, 1 << 40);
    assert!(matches!(large, Err(Error::OutOfMemory { bytes, .. }) if bytes == 1 << 40));
    // SAFETY: the memory of `buffer`, which outlives it.
    let borrowed = unsafe { Buffer::from_raw(&device, buffer.address(), 10) };
    drop(borrowed);
    assert_eq!(recorder.alive().0, 1);
    drop((buffer, empty));
    assert_eq!(recorder.alive().0, 0);
}
