//! The reference against values worked out by hand.

use splitkv_tests::case::{Case, Data, Known, Kv, Layout, Lengths, Queries, Window};
use splitkv_tests::data::{Tensors, mark};
use splitkv_tests::numeric::Format;
use splitkv_tests::pages::pages;
use splitkv_tests::places::{Place, Rows};
use splitkv_tests::reference::{Attention, Mask, View};

const LN_2: f64 = std::f64::consts::LN_2;
const NAN: f64 = f64::NAN;

/// A tensor without gaps.
struct Whole {
    values: Vec<f64>,
    place: Place,
}

impl Whole {
    fn new(values: &[f64], shape: [usize; 4], rows: Rows) -> Self {
        let [_, inner, heads, dim] = shape;
        let strides = [inner * heads * dim, heads * dim, dim];
        Self { values: values.to_vec(), place: Place { buffer: 0, shape, offset: 0, strides, rows } }
    }

    /// One sequence of scalars.
    fn column(values: &[f64]) -> Self {
        Self::new(values, [1, values.len(), 1, 1], Rows::Dense)
    }

    fn view(&self) -> View<'_> {
        View { values: &self.values, place: &self.place }
    }
}

/// One head, no mask, scale 1.
fn attention<'a>([q, k, v]: [&'a Whole; 3], queries: &'a [usize], lengths: &'a [usize]) -> Attention<'a> {
    Attention {
        q: q.view(),
        k: k.view(),
        v: v.view(),
        queries,
        lengths,
        heads: 1,
        kv_heads: 1,
        mask: Mask::default(),
        scale: 1.0,
        softcap: None,
        sinks: None,
    }
}

fn row(attention: &Attention<'_>, place: [usize; 3]) -> (Vec<f64>, f64) {
    attention.row(place, &attention.scores(place))
}

#[track_caller]
fn assert_row((o, lse): (Vec<f64>, f64), want_o: &[f64], want_lse: f64) {
    assert_eq!(o.len(), want_o.len());
    for (got, want) in o.iter().zip(want_o) {
        assert!((got - want).abs() < 1e-14, "O: got {o:?}, want {want_o:?}");
    }
    assert!((lse - want_lse).abs() < 1e-14 || lse == want_lse, "LSE: got {lse}, want {want_lse}");
}

#[test]
fn weights_are_a_softmax_of_scaled_scores() {
    // Scores 0, ln 2, ln 4 with scale ln 2: weights 1/7, 2/7, 4/7.
    let [q, k, v] = [&[1.0][..], &[0.0, 1.0, 2.0], &[7.0, 14.0, -7.0]].map(Whole::column);
    let attention = Attention { scale: LN_2, ..attention([&q, &k, &v], &[1], &[3]) };
    assert_row(row(&attention, [0, 0, 0]), &[1.0], 7f64.ln());
}

#[test]
fn huge_scores_do_not_overflow() {
    let [q, k, v] = [&[1.0][..], &[1000.0, 1000.0], &[3.0, 5.0]].map(Whole::column);
    let attention = Attention { scale: 2.0, ..attention([&q, &k, &v], &[1], &[2]) };
    assert_row(row(&attention, [0, 0, 0]), &[4.0], 2000.0 + LN_2);
}

#[test]
fn causal_is_aligned_at_the_bottom_right() {
    // Three queries, two keys: the first query sees nothing, the last one everything.
    let [q, k, v] = [&[0.0, 0.0, 0.0][..], &[1.0, 1.0], &[10.0, 20.0]].map(Whole::column);
    let mask = Mask { causal: true, ..Mask::default() };
    let plain = attention([&q, &k, &v], &[3], &[2]);
    let attention = Attention { mask, ..plain };
    assert_row(row(&attention, [0, 0, 0]), &[0.0], f64::NEG_INFINITY);
    assert_row(row(&attention, [0, 1, 0]), &[10.0], 0.0);
    assert_row(row(&attention, [0, 2, 0]), &[15.0], LN_2);
    // A length below sk moves the alignment.
    let shorter = Attention { lengths: &[1], ..attention.clone() };
    assert_row(row(&shorter, [0, 1, 0]), &[0.0], f64::NEG_INFINITY);
    assert_row(row(&shorter, [0, 2, 0]), &[10.0], 0.0);
    // More keys than queries: the first query sees the surplus and its own.
    let longer = Attention { queries: &[1], ..attention };
    assert_eq!(longer.keys(0, 0), 0..2);
}

#[test]
fn windows_are_around_the_own_key() {
    // Two queries, five keys: their own are 3 and 4.
    let keys = |left, right, causal| {
        let mask = Mask { causal, left, right };
        [mask.keys(0, 2, 5), mask.keys(1, 2, 5)]
    };
    assert_eq!(keys(None, None, false), [0..5, 0..5]);
    assert_eq!(keys(Some(1), Some(0), false), [2..4, 3..5], "two keys each, the own one among them");
    assert_eq!(keys(Some(0), Some(0), true), [3..4, 4..5]);
    assert_eq!(keys(Some(0), Some(1), false), [3..5, 4..5]);
    assert_eq!(keys(Some(0), Some(1), true), [3..4, 4..5], "causal is one more bound");
    assert_eq!(keys(None, Some(0), false), keys(None, None, true));
    assert_eq!(keys(Some(9), Some(9), false), [0..5, 0..5]);
    // Five queries, two keys: the own keys are -3 to 1.
    let mask = Mask { causal: false, left: Some(0), right: Some(1) };
    let keys: Vec<_> = (0..5).map(|query| mask.keys(query, 5, 2)).collect();
    assert!(keys[0].is_empty() && keys[1].is_empty(), "{keys:?}");
    assert_eq!(keys[2..], [0..1, 0..2, 1..2]);
    // No keys at all.
    assert!(mask.keys(0, 1, 0).is_empty());
}

#[test]
fn a_window_hides_keys() {
    let [q, k, v] = [&[0.0, 0.0][..], &[NAN, 1.0, 1.0], &[NAN, 6.0, 8.0]].map(Whole::column);
    let mask = Mask { causal: false, left: Some(0), right: Some(0) };
    let attention = Attention { mask, ..attention([&q, &k, &v], &[2], &[3]) };
    assert_row(row(&attention, [0, 0, 0]), &[6.0], 0.0);
    assert_row(row(&attention, [0, 1, 0]), &[8.0], 0.0);
}

#[test]
fn a_softcap_comes_between_scale_and_mask() {
    // tanh(ln 3 / 2) = 1/2. With cap 2 ln 2 the raw score ln 2 ln 3 becomes ln 2: weights 1/3, 2/3.
    let [q, k, v] = [&[1.0][..], &[0.0, LN_2 * 3f64.ln() / 4.0], &[3.0, 9.0]].map(Whole::column);
    let capped = Attention { scale: 4.0, softcap: Some(2.0 * LN_2), ..attention([&q, &k, &v], &[1], &[2]) };
    assert_row(row(&capped, [0, 0, 0]), &[7.0], 3f64.ln());
    // However large a score, it becomes the cap; what is masked has no weight, not that of -cap.
    let [q, k] = [&[1.0, 1.0][..], &[1e9, 1e9]].map(Whole::column);
    let mask = Mask { causal: true, ..Mask::default() };
    let capped = Attention { mask, softcap: Some(0.5), ..attention([&q, &k, &v], &[2], &[2]) };
    assert_row(row(&capped, [0, 0, 0]), &[3.0], 0.5);
    assert_row(row(&capped, [0, 1, 0]), &[6.0], 0.5 + LN_2);
}

#[test]
fn a_sink_takes_weight_and_has_no_value() {
    // Scores 0 and ln 2, sink ln 4: weights 1/7, 2/7 and 4/7 of nothing. The other head has no sink.
    let [k, v] = [&[0.0, LN_2][..], &[7.0, 14.0]].map(Whole::column);
    let q = Whole::new(&[1.0, 1.0], [1, 1, 2, 1], Rows::Dense);
    let sinks = [4f64.ln() as f32, f32::NEG_INFINITY];
    let (sunk, lse) = (f64::from(sinks[0]).exp(), |sum: f64| sum.ln());
    let with = Attention { heads: 2, sinks: Some(&sinks), ..attention([&q, &k, &v], &[1], &[2]) };
    assert_row(row(&with, [0, 0, 0]), &[35.0 / (3.0 + sunk)], lse(3.0 + sunk));
    assert_row(row(&with, [0, 0, 1]), &[35.0 / 3.0], lse(3.0));
    // Without keys: the sink alone, or nothing.
    let empty = Attention { lengths: &[0], ..with.clone() };
    assert_row(row(&empty, [0, 0, 0]), &[0.0], f64::from(sinks[0]));
    assert_row(row(&empty, [0, 0, 1]), &[0.0], f64::NEG_INFINITY);
    // A sink beyond all scores takes everything.
    let sinks = [2000.0, 2000.0];
    let drowned = Attention { sinks: Some(&sinks), ..with };
    assert_row(row(&drowned, [0, 0, 0]), &[0.0], 2000.0);
}

#[test]
fn lengths_hide_keys_and_length_0_everything() {
    let q = Whole::new(&[0.0; 2], [2, 1, 1, 1], Rows::Dense);
    let k = Whole::new(&[0.0, NAN, NAN, NAN], [2, 2, 1, 1], Rows::Dense);
    let v = Whole::new(&[8.0, NAN, NAN, NAN], [2, 2, 1, 1], Rows::Dense);
    let attention = attention([&q, &k, &v], &[1, 1], &[1, 0]);
    assert_row(row(&attention, [0, 0, 0]), &[8.0], 0.0);
    assert_row(row(&attention, [1, 0, 0]), &[0.0], f64::NEG_INFINITY);
}

#[test]
fn packed_sequences_lie_one_behind_another() {
    // One query and two keys; none and one; two queries and one key.
    let packed = |values, starts: &[usize]| {
        let shape = [1, <[f64]>::len(values), 1, 1];
        Whole::new(values, shape, Rows::Packed { starts: starts.to_vec() })
    };
    let q = packed(&[0.0, 0.0, 0.0], &[0, 1, 1]);
    let (k, v) = (packed(&[0.0, 0.0, NAN, 0.0], &[0, 2, 3]), packed(&[1.0, 3.0, NAN, 5.0], &[0, 2, 3]));
    let mask = Mask { causal: true, ..Mask::default() };
    let attention = Attention { mask, ..attention([&q, &k, &v], &[1, 0, 2], &[2, 1, 1]) };
    assert_row(row(&attention, [0, 0, 0]), &[2.0], LN_2);
    assert_row(row(&attention, [2, 0, 0]), &[0.0], f64::NEG_INFINITY);
    assert_row(row(&attention, [2, 1, 0]), &[5.0], 0.0);
}

#[test]
fn pages_are_found_through_the_table() {
    // Pages of two tokens, four of them; three tokens in pages 2 and 0, one token in page 3.
    let paged = |values| {
        let rows = Rows::Paged { width: 2, table: vec![2, 0, 3, -1] };
        Whole::new(values, [4, 2, 1, 1], rows)
    };
    let q = Whole::new(&[0.0; 2], [2, 1, 1, 1], Rows::Dense);
    let k = paged(&[0.0, NAN, NAN, NAN, 0.0, 0.0, 0.0, NAN]);
    let v = paged(&[9.0, NAN, NAN, NAN, 1.0, 2.0, 5.0, NAN]);
    assert_eq!((k.place.start(0, 1, 0), k.place.start(0, 2, 0)), (5, 0));
    let attention = attention([&q, &k, &v], &[1, 1], &[3, 1]);
    assert_row(row(&attention, [0, 0, 0]), &[4.0], 3f64.ln());
    assert_row(row(&attention, [1, 0, 0]), &[5.0], 0.0);
}

#[test]
fn query_heads_share_kv_heads_in_runs() {
    let q = Whole::new(&[0.0; 6], [1, 1, 6, 1], Rows::Dense);
    let k = Whole::new(&[0.0, 0.0], [1, 1, 2, 1], Rows::Dense);
    let v = Whole::new(&[5.0, 9.0], [1, 1, 2, 1], Rows::Dense);
    let attention = Attention { heads: 6, kv_heads: 2, ..attention([&q, &k, &v], &[1], &[1]) };
    let o: Vec<f64> = (0..6).map(|head| row(&attention, [0, 0, head]).0[0]).collect();
    assert_eq!(o, [5.0, 5.0, 5.0, 9.0, 9.0, 9.0]);
}

#[test]
fn strides_and_offsets_are_honoured() {
    // `[batch 1, seq 2, heads 2, dim 2]`, heads first in memory, one element before.
    let values = [-1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
    let place = Place { buffer: 0, shape: [1, 2, 2, 2], offset: 1, strides: [8, 2, 4], rows: Rows::Dense };
    let view = View { values: &values, place: &place };
    assert_eq!(view.vector(0, 0, 0), [0.0, 1.0]);
    assert_eq!(view.vector(0, 1, 0), [2.0, 3.0]);
    assert_eq!(view.vector(0, 0, 1), [4.0, 5.0]);
    assert_eq!(view.vector(0, 1, 1), [6.0, 7.0]);
    assert_eq!(place.end(), values.len());
}

#[test]
fn layouts_give_the_same_rows() {
    let case = Case { causal: true, lengths: Lengths::Host(vec![77, 0]), ..Case::new(2, 3, 90, 2, 3) };
    let rows = |layout| {
        let case = Case { layout, ..case.clone() };
        let rows = Tensors::new(&case).expected(&case);
        rows.into_iter().map(|row| (row.o, row.lse)).collect::<Vec<_>>()
    };
    let contiguous = rows(Layout::Contiguous);
    assert_eq!(contiguous.len(), 2 * 3 * 6);
    assert!(contiguous.iter().all(|(o, lse)| o.iter().all(|o| o.is_finite()) && !lse.is_nan()));
    for layout in [Layout::Padded, Layout::Interleaved, Layout::HeadsFirst] {
        assert_eq!(rows(layout), contiguous, "{layout:?}");
    }
}

/// Packed, paged or neither: the data are the same, and so are the rows that are right.
#[test]
fn packed_and_paged_sequences_give_the_same_rows() {
    let plain = Case {
        causal: true,
        window: Some(Window { left: Some(50), right: None }),
        softcap: Some(2.0),
        sink: Some(vec![Some(1.5), None]),
        lengths: Lengths::Host(vec![77, 0, 9]),
        ..Case::new(3, 3, 90, 2, 3)
    };
    let rows = |case: &Case| {
        let rows = Tensors::new(case).expected(case).into_iter();
        rows.map(|row| (row.o, row.lse, row.o_tolerance, row.lse_tolerance)).collect::<Vec<_>>()
    };
    let want = rows(&plain);
    assert!(want.iter().all(|(o, lse, ..)| o.iter().all(|o| o.is_finite()) && !lse.is_nan()));
    let known = Known::Device;
    let forms = [
        Kv::Packed { room: vec![77, 2, 90], known },
        Kv::Paged { page_size: 1, shared: 0, spare: 0, known },
        Kv::Paged { page_size: 16, shared: 0, spare: 2, known },
        Kv::Paged { page_size: 128, shared: 0, spare: 0, known },
    ];
    for kv in forms {
        for layout in [Layout::Contiguous, Layout::Padded, Layout::Interleaved, Layout::HeadsFirst] {
            let queries = Queries::Packed { lengths: vec![3; 3], known };
            let case = Case { kv: kv.clone(), layout, queries, ..plain.clone() };
            assert_eq!(rows(&case), want, "{case}");
        }
    }
}

#[test]
fn tables_hold_each_page_once_and_nothing_valid_that_must_be() {
    let kv = Kv::Paged { page_size: 16, shared: 2, spare: 1, known: Known::Device };
    let case = Case { kv, lengths: Lengths::Device(vec![100, 0, 33]), ..Case::new(3, 1, 120, 1, 1) };
    let pool = pages(&case);
    // Seven pages, none, and three; two of them shared.
    assert_eq!((pool.width, pool.pages), (8 + 1, 3 * (2 + 5 + 1)));
    let row = |b: usize| &pool.table[b * 9..][..9];
    let mut used: Vec<i32> = row(0)[..7].iter().chain(&row(2)[2..3]).copied().collect();
    used.sort_unstable();
    used.dedup();
    assert!(used.len() == 8 && used.iter().all(|page| (0..24).contains(page)), "{used:?}");
    assert_eq!(row(0)[..2], row(2)[..2]);
    assert!(pool.table.iter().any(|page| !(0..24).contains(page)), "garbage where no page is needed");
    // A table that the host checks, with lengths that it does not know, has a page for every token.
    let kv = Kv::Paged { page_size: 16, shared: 0, spare: 0, known: Known::Host };
    let pool = pages(&Case { kv, ..case });
    assert!(pool.table.iter().all(|page| (0..3 * 24).contains(page)), "{pool:?}");
}

#[test]
fn a_constant_added_to_all_scores_moves_the_lse_alone() {
    // k + c q / |q|^2 adds scale * c to every score.
    let q = [0.3, -1.2];
    let k = [1.0, 0.5, -0.7, 2.0, 0.1, 0.9];
    let shift = 3.0 / (0.3f64.powi(2) + 1.2f64.powi(2));
    let moved: Vec<f64> = k.iter().enumerate().map(|(i, k)| k + shift * q[i % 2]).collect();
    let vectors = |values: &[f64]| Whole::new(values, [1, values.len() / 2, 1, 2], Rows::Dense);
    let (q, k, moved, v) = (vectors(&q), vectors(&k), vectors(&moved), Whole::column(&[1.0, -2.0, 4.0]));
    let attention = Attention { scale: 0.7, ..attention([&q, &k, &v], &[1], &[3]) };
    let (o, lse) = row(&attention, [0, 0, 0]);
    let attention = Attention { k: moved.view(), ..attention };
    assert_row(row(&attention, [0, 0, 0]), &o, lse + 0.7 * 3.0);
}

#[test]
fn data_is_as_described() {
    let case = Case { data: Data::Constant, ..Case::new(1, 2, 300, 1, 2) };
    for row in Tensors::new(&case).expected(&case) {
        assert!(row.o.iter().all(|o| (o + 1.5).abs() < 1e-12));
        let score = 128.0 * 0.5 * 0.25 / 128f64.sqrt();
        assert!((row.lse - score - 300f64.ln()).abs() < 1e-12, "{}", row.lse);
    }
    // A needle carries the row: O is V's vector there.
    let case = Case { data: Data::Needles(vec![299]), ..case };
    let tensors = Tensors::new(&case);
    let v = case.format.decode(&tensors.buffers[2]);
    for row in tensors.expected(&case) {
        assert!(row.o.iter().zip(&v[299 * 128..]).all(|(o, v)| (o - v).abs() < 1e-9));
    }
    // Marks: 300 positions of base 64.
    assert_eq!(mark(0, 128), [0, 64]);
    assert_eq!(mark(130, 128), [2, 66]);
    let case = Case { data: Data::Positions, ..case };
    let row = &Tensors::new(&case).expected(&case)[0];
    assert!((row.o[0] - 5.0 / 300.0).abs() < 1e-15, "positions 0, 64, 128, 192, 256");
    assert!((row.o[68] - 44.0 / 300.0).abs() < 1e-15, "positions 256 to 299");
    assert!((row.lse - 300f64.ln()).abs() < 1e-12);
}

#[test]
fn random_data_has_the_stated_moments() {
    let case = Case::new(1, 16, 512, 2, 4);
    let values = case.format.decode(&Tensors::new(&case).buffers[1]);
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|v| v * v).sum::<f64>() / n - mean * mean;
    assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.02, "mean {mean}, variance {variance}");
}

#[test]
fn what_must_not_matter_is_nan() {
    let case = Case { lengths: Lengths::Host(vec![2, 0]), layout: Layout::Padded, ..Case::new(2, 1, 3, 1, 1) };
    let tensors = Tensors::new(&case);
    let finite = |tensor: usize| case.format.decode(&tensors.buffers[tensor]).iter().filter(|v| v.is_finite()).count();
    assert_eq!([finite(0), finite(1), finite(2)], [2 * 128, 2 * 128, 2 * 128]);
}

#[test]
fn formats_round_to_nearest_even() {
    assert_eq!(Format::Bf16.round(1.0 + 2f64.powi(-8)), 1.0);
    assert_eq!(Format::Bf16.round(1.0 + 3.0 * 2f64.powi(-8)), 1.0 + 2f64.powi(-6));
    assert_eq!(Format::F16.round(1.0 + 2f64.powi(-11)), 1.0);
    assert_eq!(Format::F16.round(2f64.powi(-25)), 0.0);
    for format in [Format::Bf16, Format::F16] {
        let stored = |x| {
            let mut bytes = vec![0; format.size()];
            format.encode(x, &mut bytes);
            format.decode(&bytes)[0]
        };
        assert_eq!(stored(-1.5), -1.5);
        assert!(stored(f32::NAN).is_nan());
        // Half an ulp, at the lower end of a binade: the roundoff and no more.
        let error = (format.round(1.0 + 0.99 * format.roundoff()) - 1.0).abs();
        assert_eq!(error, 0.0);
        assert!(format.round(1.0 + 1.01 * format.roundoff()) > 1.0);
    }
}
