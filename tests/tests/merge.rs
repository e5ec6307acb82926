//! Merging a caller's partial results, on devices and on the host.

use fastrand::Rng;
use half::{bf16, f16};
use splitkv::{
    AttentionOptions, DType, Error, HostPartial, LseBase, Merge, Partial, Status, Tensor, attention, merge_on_host,
};
use splitkv_tests::numeric::Format;
use splitkv_tests::site::{Site, suite};

/// Batch, queries, heads, head dim; partials; format of the partials and of the whole; packed.
type Example = ([usize; 4], usize, Format, Format, bool);

/// Every number of partials, and sizes around a warp's and a block's.
const EXAMPLES: [Example; 9] = [
    ([1, 1, 1, 8], 1, Format::F32, Format::F32, false),
    ([2, 3, 5, 64], 2, Format::F32, Format::Bf16, false),
    ([1, 7, 4, 128], 3, Format::Bf16, Format::Bf16, false),
    ([3, 1, 6, 96], 5, Format::F16, Format::F16, false),
    ([1, 33, 2, 256], 2, Format::F16, Format::F32, true),
    ([2, 2, 2, 40], 40, Format::F32, Format::F16, false),
    ([1, 5, 3, 136], 9, Format::Bf16, Format::F32, true),
    ([2, 3, 4, 128], 0, Format::F32, Format::Bf16, false),
    ([1, 70, 12, 128], 11, Format::F32, Format::Bf16, false),
];

fn dtype(format: Format) -> DType {
    match format {
        Format::Bf16 => DType::Bf16,
        Format::F16 => DType::F16,
        _ => DType::F32,
    }
}

/// O and LSE of random partials, O as values of `format`, rows in the order `[batch, sq, heads]`. Some partials of some
/// rows are empty; their O is NaN.
fn random(rng: &mut Rng, rows: usize, head_dim: usize, format: Format) -> (Vec<f32>, Vec<f32>) {
    let (mut o, mut lse) = (Vec::new(), Vec::new());
    for _ in 0..rows {
        let empty = rng.u8(..4) == 0;
        lse.push(if empty { f32::NEG_INFINITY } else { rng.f32() * 40.0 - 20.0 });
        let value = |rng: &mut Rng| if empty { f32::NAN } else { format.round(f64::from(rng.f32() - 0.5)) as f32 };
        o.extend((0..head_dim).map(|_| value(rng)));
    }
    (o, lse)
}

fn tensor(site: &Site, values: &[f32], shape: &[usize], format: Format) -> Tensor {
    match format {
        Format::Bf16 => {
            let values: Vec<_> = values.iter().copied().map(bf16::from_f32).collect();
            Tensor::from_host(&site.device, &values, shape)
        }
        Format::F16 => {
            let values: Vec<_> = values.iter().copied().map(f16::from_f32).collect();
            Tensor::from_host(&site.device, &values, shape)
        }
        _ => Tensor::from_host(&site.device, values, shape),
    }
    .expect("a tensor")
}

fn values(tensor: &Tensor) -> Vec<f32> {
    match tensor.dtype() {
        DType::Bf16 => tensor.to_host::<bf16>().unwrap().into_iter().map(f32::from).collect(),
        DType::F16 => tensor.to_host::<f16>().unwrap().into_iter().map(f32::from).collect(),
        _ => tensor.to_host::<f32>().unwrap(),
    }
}

/// LSE from the order `[batch, sq, heads]` to `[batch, heads, sq]`.
fn heads_first(lse: &[f32], [batch, sq, heads, _]: [usize; 4]) -> Vec<f32> {
    let place = |b: usize, h: usize, q: usize| lse[(b * sq + q) * heads + h];
    (0..batch).flat_map(|b| (0..heads).flat_map(move |h| (0..sq).map(move |q| place(b, h, q)))).collect()
}

struct Shapes {
    o: Vec<usize>,
    lse: Vec<usize>,
}

fn shapes([batch, sq, heads, head_dim]: [usize; 4], packed: bool) -> Shapes {
    if packed {
        Shapes { o: vec![sq, heads, head_dim], lse: vec![heads, sq] }
    } else {
        Shapes { o: vec![batch, sq, heads, head_dim], lse: vec![batch, heads, sq] }
    }
}

fn right(site: &Site, seed: u64, &(sizes, count, format, output, packed): &Example) {
    let [batch, sq, heads, head_dim] = sizes;
    let rows = batch * sq * heads;
    let mut rng = Rng::with_seed(seed);
    let parts: Vec<_> = (0..count).map(|_| random(&mut rng, rows, head_dim, format)).collect();
    let host: Vec<_> = parts.iter().map(|(o, lse)| HostPartial { o, lse, base: LseBase::Natural }).collect();
    let (want_o, want_lse) = merge_on_host(&host, rows, head_dim).unwrap();

    let shapes = shapes(sizes, packed);
    let tensors: Vec<_> = parts
        .iter()
        .map(|(o, lse)| {
            let lse = heads_first(lse, sizes);
            (tensor(site, o, &shapes.o, format), tensor(site, &lse, &shapes.lse, Format::F32))
        })
        .collect();
    let partials: Vec<_> = tensors.iter().map(|(o, lse)| Partial { o, lse, base: LseBase::Natural }).collect();
    let o = Tensor::uninit(&site.device, dtype(output), &shapes.o).unwrap();
    let lse = Tensor::uninit(&site.device, DType::F32, &shapes.lse).unwrap();
    o.buffer().fill(0xff).unwrap();
    lse.buffer().fill(0xff).unwrap();
    let stream = site.device.stream().unwrap();
    let mut merge = Merge::new(&site.device, &site.kernels, &partials, &o, Some(&lse)).unwrap();
    merge.run(&stream).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(merge.status().unwrap(), Status::default());

    let got = values(&o);
    for (index, (got, want)) in got.iter().zip(&want_o).enumerate() {
        let allowed = (output.roundoff() + 3e-6) * f64::from(want.abs().max(0.01));
        assert!(f64::from((got - want).abs()) <= allowed, "{sizes:?} x {count}, element {index}: {got}, want {want}");
    }
    for (got, want) in values(&lse).iter().zip(heads_first(&want_lse, sizes)) {
        assert!(*got == want || (got - want).abs() <= 1e-5, "{sizes:?} x {count}: LSE {got}, want {want}");
    }
    // Without LSE, the same bits.
    o.buffer().fill(0xff).unwrap();
    Merge::new(&site.device, &site.kernels, &partials, &o, None).unwrap().run(&stream).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(values(&o).map_bits(), got.map_bits());
}

trait Bits {
    fn map_bits(&self) -> Vec<u32>;
}

impl Bits for Vec<f32> {
    fn map_bits(&self) -> Vec<u32> {
        self.iter().map(|x| x.to_bits()).collect()
    }
}

#[test]
fn the_device_merges_as_the_host_does() {
    suite("merge::the_device_merges_as_the_host_does", |site| {
        for (seed, example) in EXAMPLES.iter().enumerate() {
            right(site, seed as u64, example);
        }
        EXAMPLES.len()
    });
}

#[test]
fn bases_are_two_scales_of_one_thing() {
    let mut rng = Rng::with_seed(7);
    let natural: Vec<_> = (0..4).map(|_| random(&mut rng, 20, 8, Format::F32)).collect();
    let merged = |scale: f32, base| {
        let scaled: Vec<_> =
            natural.iter().map(|(o, lse)| (o, lse.iter().map(|lse| lse * scale).collect::<Vec<_>>())).collect();
        let partials: Vec<_> = scaled.iter().map(|(o, lse)| HostPartial { o, lse, base }).collect();
        merge_on_host(&partials, 20, 8).unwrap()
    };
    let (o, lse) = merged(1.0, LseBase::Natural);
    let (o_2, lse_2) = merged(std::f32::consts::LOG2_E, LseBase::Two);
    for (natural, two) in o.iter().zip(o_2) {
        assert!((natural - two).abs() < 1e-5);
    }
    for (natural, two) in lse.iter().zip(lse_2) {
        assert!(*natural == two || (natural - two * std::f32::consts::LN_2).abs() < 1e-5);
    }
}

/// The whole from its parts, worked by hand: ln 3 and ln 1 weigh 3 to 1.
#[test]
fn two_parts_weigh_by_their_sums() {
    let (first, second) = ([3.0_f32.ln()], [0.0]);
    let part = |o, lse, base| HostPartial { o, lse, base };
    let natural = [part(&[4.0], &first, LseBase::Natural), part(&[8.0], &second, LseBase::Natural)];
    let (o, lse) = merge_on_host(&natural, 1, 1).unwrap();
    assert!((o[0] - 5.0).abs() < 1e-6 && (lse[0] - 4.0_f32.ln()).abs() < 1e-6, "{o:?} {lse:?}");
    assert_eq!(merge_on_host(&[], 2, 1).unwrap(), (vec![0.0; 2], vec![f32::NEG_INFINITY; 2]));
}

/// Plus infinity and NaN make their row NaN, leave the others alone, and are reported.
#[test]
fn a_bad_lse_is_reported() {
    suite("merge::a_bad_lse_is_reported", |site| {
        let (rows, head_dim) = (6, 16);
        let o = tensor(site, &vec![1.0; rows * head_dim], &[rows, 1, head_dim], Format::F32);
        for bad in [f32::INFINITY, f32::NAN] {
            let mut lse = vec![0.5; rows];
            lse[4] = bad;
            let lse = tensor(site, &lse, &[1, rows], Format::F32);
            let partials = [Partial { o: &o, lse: &lse, base: LseBase::Two }; 2];
            let out = Tensor::uninit(&site.device, DType::F32, o.shape()).unwrap();
            let out_lse = Tensor::uninit(&site.device, DType::F32, lse.shape()).unwrap();
            let mut merge = Merge::new(&site.device, &site.kernels, &partials, &out, Some(&out_lse)).unwrap();
            let stream = site.device.stream().unwrap();
            merge.run(&stream).unwrap();
            stream.synchronize().unwrap();
            assert!(merge.status().unwrap().bad_lse);
            assert!(merge.status().unwrap().is_ok(), "it was taken");
            for (index, value) in values(&out).iter().enumerate() {
                assert!(if index / head_dim == 4 { value.is_nan() } else { *value == 1.0 }, "{index}: {value}");
            }
            // Two equal parts in base 2: one more.
            for (row, lse) in values(&out_lse).iter().enumerate() {
                assert!(if row == 4 { lse.is_nan() } else { *lse == 1.5 }, "{row}: {lse}");
            }
            let (host_o, host_lse) = (vec![1.0; rows * head_dim], values(&lse));
            let host = [HostPartial { o: &host_o, lse: &host_lse, base: LseBase::Two }];
            let error = merge_on_host(&host, rows, head_dim).unwrap_err().to_string();
            assert!(error.starts_with("partials.lse: given ") && error.contains("in row 4 of partial 0"), "{error}");
        }
        2
    });
}

#[test]
fn mixes_and_misfits_are_refused() {
    suite("merge::mixes_and_misfits_are_refused", |site| {
        let f32s = |shape: &[usize]| Tensor::zeros(&site.device, DType::F32, shape).unwrap();
        let (o, lse, out) = (f32s(&[2, 3, 4, 8]), f32s(&[2, 4, 3]), f32s(&[2, 3, 4, 8]));
        let natural = Partial { o: &o, lse: &lse, base: LseBase::Natural };
        let refused = |partials: &[Partial<'_>], out: &Tensor, out_lse: Option<&Tensor>| match Merge::new(
            &site.device,
            &site.kernels,
            partials,
            out,
            out_lse,
        )
        .unwrap_err()
        {
            Error::Argument { argument, given, allowed } => format!("{argument}: {given}; {allowed}"),
            error => panic!("{error}"),
        };
        let (short, half) = (f32s(&[2, 4, 2]), Tensor::zeros(&site.device, DType::Bf16, &[2, 3, 4, 8]).unwrap());
        let ints = Tensor::zeros(&site.device, DType::I32, &[2, 3, 4, 8]).unwrap();
        let mixed = [natural, Partial { base: LseBase::Two, ..natural }];
        assert_eq!(refused(&mixed, &out, None), "partials.base: base 2 for partial 1; natural, the first one's");
        let expected = "partials.lse: shape [2, 4, 2] for partial 0; shape [2, 4, 3]";
        assert_eq!(refused(&[Partial { lse: &short, ..natural }], &out, None), expected);
        let types = [natural, Partial { o: &half, ..natural }];
        assert_eq!(refused(&types, &out, None), "partials.o: bf16 for partial 1; f32");
        assert_eq!(
            refused(&[Partial { o: &ints, ..natural }], &out, None),
            "partials.o: i32 for partial 0; bf16, f16 or f32"
        );
        assert!(refused(&[natural], &o, None).starts_with("o: "), "overlap with a partial");
        assert!(refused(&[natural], &out, Some(&lse)).starts_with("lse: "), "overlap with a partial");
        assert!(refused(&[natural], &out, Some(&short)).starts_with("lse: shape [2, 4, 2]"));
        assert!(refused(&[], &f32s(&[2, 3]), None).starts_with("o: shape [2, 3]"));
        assert!(refused(&[], &f32s(&[2, 3, 4]), None).contains("multiple of 8"));
        9
    });
}

/// A prefix that all sequences share, computed once for the batch, and each one's own suffix: merged, they are the whole.
#[test]
fn a_shared_prefix_and_suffixes_are_the_whole() {
    suite("merge::a_shared_prefix_and_suffixes_are_the_whole", |site| {
        let (batch, heads, kv_heads, prefix, suffix, d) = (3, 8, 2, 200, 70, 64);
        let mut rng = Rng::with_seed(3);
        let mut draw = |elements: usize| -> Vec<f32> {
            (0..elements).map(|_| Format::F16.round(f64::from(rng.f32() * 2.0 - 1.0)) as f32).collect()
        };
        let q = draw(batch * heads * d);
        let row = kv_heads * d;
        let [prefixes, suffixes] = [prefix * row, batch * suffix * row].map(|n| [draw(n), draw(n)]);
        let whole = |side: usize| -> Vec<f32> {
            let of = |b: usize| prefixes[side].iter().chain(&suffixes[side][b * suffix * row..(b + 1) * suffix * row]);
            (0..batch).flat_map(of).copied().collect()
        };
        let run = |q: &Tensor, k: &[f32], v: &[f32], batch: usize, sk: usize| {
            let [k, v] = [k, v].map(|x| tensor(site, x, &[batch, sk, kv_heads, d], Format::F16));
            let options = AttentionOptions { lse: true, o_dtype: Some(DType::F32), ..AttentionOptions::default() };
            let (o, lse) = attention(&site.device, &site.kernels, q, &k, &v, &options).unwrap();
            (o, lse.unwrap())
        };
        let q_of = |shape: &[usize]| tensor(site, &q, shape, Format::F16);
        // The prefix sees one sequence whose queries are those of the batch.
        let (prefix_o, prefix_lse) = run(&q_of(&[1, batch, heads, d]), &prefixes[0], &prefixes[1], 1, prefix);
        let (suffix_o, suffix_lse) = run(&q_of(&[batch, 1, heads, d]), &suffixes[0], &suffixes[1], batch, suffix);
        let (want_o, want_lse) = run(&q_of(&[batch, 1, heads, d]), &whole(0), &whole(1), batch, prefix + suffix);

        // The prefix's results, seen as the batch's.
        let view = |x: &Tensor, shape: &[usize], strides: &[usize]| {
            Tensor::new(x.buffer().clone(), 0, DType::F32, shape, strides).unwrap()
        };
        let prefix_o = view(&prefix_o, suffix_o.shape(), suffix_o.strides());
        let prefix_lse = view(&prefix_lse, &[batch, heads, 1], &[1, batch, 1]);
        let partials = [(&prefix_o, &prefix_lse), (&suffix_o, &suffix_lse)];
        let partials = partials.map(|(o, lse)| Partial { o, lse, base: LseBase::Natural });
        let o = Tensor::uninit(&site.device, DType::F32, want_o.shape()).unwrap();
        let lse = Tensor::uninit(&site.device, DType::F32, want_lse.shape()).unwrap();
        let stream = site.device.stream().unwrap();
        Merge::new(&site.device, &site.kernels, &partials, &o, Some(&lse)).unwrap().run(&stream).unwrap();
        stream.synchronize().unwrap();
        for (got, want) in values(&o).iter().zip(values(&want_o)) {
            assert!((got - want).abs() < 2e-4, "{got}, want {want}");
        }
        for (got, want) in values(&lse).iter().zip(values(&want_lse)) {
            assert!((got - want).abs() < 1e-5, "{got}, want {want}");
        }
        1
    });
}
