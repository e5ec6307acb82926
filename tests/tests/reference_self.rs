//! The reference against values worked out by hand.

use splitkv_tests::case::{Case, Data, Layout, Lengths};
use splitkv_tests::data::{Tensors, mark};
use splitkv_tests::numeric::{Format, NAN16};
use splitkv_tests::reference::{Attention, View};

const LN_2: f64 = std::f64::consts::LN_2;

/// One sequence `[1, seq, 1, 1]`.
fn column(values: &[f64]) -> View<'_> {
    View { values, offset: 0, strides: [values.len(), 1, 1], dim: 1 }
}

fn row(attention: &Attention<'_>, [batch, query, head]: [usize; 3]) -> (Vec<f64>, f64) {
    attention.row(batch, head, &attention.scores(batch, query, head))
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
    let attention = Attention {
        q: column(&[1.0]),
        k: column(&[0.0, 1.0, 2.0]),
        v: column(&[7.0, 14.0, -7.0]),
        sq: 1,
        heads: 1,
        kv_heads: 1,
        lengths: &[3],
        causal: false,
        scale: LN_2,
    };
    assert_row(row(&attention, [0, 0, 0]), &[1.0], 7f64.ln());
}

#[test]
fn huge_scores_do_not_overflow() {
    let attention = Attention {
        q: column(&[1.0]),
        k: column(&[1000.0, 1000.0]),
        v: column(&[3.0, 5.0]),
        sq: 1,
        heads: 1,
        kv_heads: 1,
        lengths: &[2],
        causal: false,
        scale: 2.0,
    };
    assert_row(row(&attention, [0, 0, 0]), &[4.0], 2000.0 + LN_2);
}

#[test]
fn causal_is_aligned_at_the_bottom_right() {
    // Three queries, two keys: the first query sees nothing, the last one everything.
    let attention = Attention {
        q: column(&[0.0, 0.0, 0.0]),
        k: column(&[1.0, 1.0]),
        v: column(&[10.0, 20.0]),
        sq: 3,
        heads: 1,
        kv_heads: 1,
        lengths: &[2],
        causal: true,
        scale: 1.0,
    };
    assert_row(row(&attention, [0, 0, 0]), &[0.0], f64::NEG_INFINITY);
    assert_row(row(&attention, [0, 1, 0]), &[10.0], 0.0);
    assert_row(row(&attention, [0, 2, 0]), &[15.0], LN_2);
    // A length below sk moves the alignment.
    let shorter = Attention { lengths: &[1], ..attention.clone() };
    assert_row(row(&shorter, [0, 1, 0]), &[0.0], f64::NEG_INFINITY);
    assert_row(row(&shorter, [0, 2, 0]), &[10.0], 0.0);
    // More keys than queries: the first query sees the surplus and its own.
    let longer = Attention { sq: 1, ..attention };
    assert_eq!(longer.visible(0, 0), 2);
}

#[test]
fn lengths_hide_keys_and_length_0_everything() {
    let attention = Attention {
        q: View { values: &[0.0; 2], offset: 0, strides: [1, 1, 1], dim: 1 },
        k: View { values: &[0.0, f64::NAN, f64::NAN, f64::NAN], offset: 0, strides: [2, 1, 1], dim: 1 },
        v: View { values: &[8.0, f64::NAN, f64::NAN, f64::NAN], offset: 0, strides: [2, 1, 1], dim: 1 },
        sq: 1,
        heads: 1,
        kv_heads: 1,
        lengths: &[1, 0],
        causal: false,
        scale: 1.0,
    };
    assert_row(row(&attention, [0, 0, 0]), &[8.0], 0.0);
    assert_row(row(&attention, [1, 0, 0]), &[0.0], f64::NEG_INFINITY);
}

#[test]
fn query_heads_share_kv_heads_in_runs() {
    let attention = Attention {
        q: View { values: &[0.0; 6], offset: 0, strides: [6, 6, 1], dim: 1 },
        k: View { values: &[0.0, 0.0], offset: 0, strides: [2, 2, 1], dim: 1 },
        v: View { values: &[5.0, 9.0], offset: 0, strides: [2, 2, 1], dim: 1 },
        sq: 1,
        heads: 6,
        kv_heads: 2,
        lengths: &[1],
        causal: false,
        scale: 1.0,
    };
    let o: Vec<f64> = (0..6).map(|head| row(&attention, [0, 0, head]).0[0]).collect();
    assert_eq!(o, [5.0, 5.0, 5.0, 9.0, 9.0, 9.0]);
}

#[test]
fn strides_and_offsets_are_honoured() {
    // `[batch 1, seq 2, heads 2, dim 2]`, heads first in memory, one element before.
    let values = [-1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
    let view = View { values: &values, offset: 1, strides: [8, 2, 4], dim: 2 };
    assert_eq!(view.vector(0, 0, 0), [0.0, 1.0]);
    assert_eq!(view.vector(0, 1, 0), [2.0, 3.0]);
    assert_eq!(view.vector(0, 0, 1), [4.0, 5.0]);
    assert_eq!(view.vector(0, 1, 1), [6.0, 7.0]);
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

#[test]
fn a_constant_added_to_all_scores_moves_the_lse_alone() {
    // k + c q / |q|^2 adds scale * c to every score.
    let q = [0.3, -1.2];
    let k = [1.0, 0.5, -0.7, 2.0, 0.1, 0.9];
    let shift = 3.0 / (0.3f64.powi(2) + 1.2f64.powi(2));
    let moved: Vec<f64> = k.iter().enumerate().map(|(i, k)| k + shift * q[i % 2]).collect();
    let vectors = |values| View { values, offset: 0, strides: [6, 2, 2], dim: 2 };
    let attention = Attention {
        q: vectors(&q),
        k: vectors(&k),
        v: column(&[1.0, -2.0, 4.0]),
        sq: 1,
        heads: 1,
        kv_heads: 1,
        lengths: &[3],
        causal: false,
        scale: 0.7,
    };
    let (o, lse) = row(&attention, [0, 0, 0]);
    let attention = Attention { k: vectors(&moved), ..attention };
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
    assert!(
        Format::Bf16.decode(&NAN16.to_le_bytes())[0].is_nan() && Format::F16.decode(&NAN16.to_le_bytes())[0].is_nan()
    );
    assert_eq!(Format::Bf16.round(1.0 + 2f64.powi(-8)), 1.0);
    assert_eq!(Format::Bf16.round(1.0 + 3.0 * 2f64.powi(-8)), 1.0 + 2f64.powi(-6));
    assert_eq!(Format::F16.round(1.0 + 2f64.powi(-11)), 1.0);
    assert_eq!(Format::F16.round(2f64.powi(-25)), 0.0);
    for format in [Format::Bf16, Format::F16] {
        assert_eq!(format.decode(&format.encode(-1.5).to_le_bytes()), [-1.5]);
        // Half an ulp, at the lower end of a binade: the roundoff and no more.
        let error = (format.round(1.0 + 0.99 * format.roundoff()) - 1.0).abs();
        assert_eq!(error, 0.0);
        assert!(format.round(1.0 + 1.01 * format.roundoff()) > 1.0);
    }
}
