//! What must hold of every problem, on random ones, on each device.

use std::sync::Mutex;

use kernels_gpu::abi::Role;
use splitkv::{AttentionOptions, Tensor, attention};
use splitkv_tests::case::{Case, Data, Kv, Lengths, Queries, Shape, Splits};
use splitkv_tests::compare::{Output, compare};
use splitkv_tests::data::Tensors;
use splitkv_tests::histogram::Histogram;
use splitkv_tests::launch::{Bits, Failure, Launch, options, plan_case, problem, run};
use splitkv_tests::numeric::Format;
use splitkv_tests::property::check;
use splitkv_tests::site::{Site, say};
use splitkv_tests::strategy::TILE_N;

/// Fails unless the outputs are bit-equal.
fn same_bits(what: &str, got: &Bits, want: &Bits) -> Result<(), Failure> {
    if got.o != want.o {
        let at = got.o.iter().zip(&want.o).position(|(got, want)| got != want);
        return Err(format!("{what}: O's bits differ, first at byte {at:?} of {}", got.o.len()).into());
    }
    if got.lse != want.lse {
        return Err(format!("{what}: LSE's bits differ").into());
    }
    Ok(())
}

/// O and LSE agree with the reference, row by row. Outputs and workspace were NaN before, as are the gaps and what
/// lies beyond lengths; guards, gaps and inputs are unchanged afterwards.
#[test]
fn the_reference() {
    let histogram = Mutex::new(Histogram::default());
    check("properties::the_reference", |site, case| {
        let tensors = Tensors::new(case);
        let (bits, plan) = run(site, case, &tensors)?;
        histogram.lock().expect("no panic while it is held").add(case, &plan);
        Ok(compare(case, &tensors.expected(case), &bits.output(case))?)
    });
    let histogram = histogram.into_inner().expect("no panic while it is held");
    if histogram.cases() > 0 {
        say(&histogram.to_string());
    }
    // Few cases say little about shares.
    if histogram.cases() >= 200 {
        histogram.assert_composition();
    }
}

/// Any split gives the unsplit result: LSE within 1e-5, O within the reference's tolerance.
#[test]
fn splits_change_nothing() {
    check("properties::splits_change_nothing", |site, case| {
        let case = Case { lse: true, output: Format::F32, ..case.clone() };
        let unsplit = Case { splits: Splits::Exact(1), ..case.clone() };
        let tensors = Tensors::new(&case);
        let (got, plan) = run(site, &case, &tensors)?;
        let (want, _) = run(site, &unsplit, &tensors)?;
        let (got, want) = (got.output(&case), want.output(&unsplit));
        let lses = got.lse.iter().flatten().zip(want.lse.iter().flatten());
        for (index, (got, want)) in lses.enumerate() {
            let close = got == want || (got - want).abs() <= 1e-5 * want.abs().max(1.0);
            if !close {
                let splits = plan.num_splits();
                return Err(format!("LSE {index}: {got} with {splits} splits, {want} with one").into());
            }
        }
        // Both are within the tolerance of the reference, and so within twice that of each other.
        let mut expected = tensors.expected(&case);
        for (row, want) in expected.iter_mut().zip(&want.o) {
            row.o.clone_from(want);
            row.o_tolerance *= 2.0;
        }
        Ok(compare(&case, &expected, &Output { lse: None, ..got })?)
    });
}

/// Every kernel for a problem gives the reference's result: both block shapes, one query tile and two.
#[test]
fn every_kernel_gives_the_reference() {
    check("properties::every_kernel_gives_the_reference", |site, case| {
        let tensors = Tensors::new(case);
        let expected = tensors.expected(case);
        for kernel in site.kernels.catalogue().fitting(&problem(case))? {
            let Role::Attention { shape, q_tiles, .. } = kernel.role else {
                return Err(format!("{} is no attention kernel", kernel.name).into());
            };
            let block_shape = Some(Shape::from(shape));
            let case = Case { block_shape, q_tiles: Some(q_tiles), ..case.clone() };
            let (bits, plan) = run(site, &case, &tensors)?;
            if plan.kernel() != &kernel {
                return Err(format!("{} was planned in place of {}", plan.kernel().name, kernel.name).into());
            }
            compare(&case, &expected, &bits.output(&case)).map_err(|error| format!("{}: {error}", kernel.name))?;
        }
        Ok(())
    });
}

/// Asking for the LSE does not change O's bits.
#[test]
fn lse_does_not_change_o() {
    check("properties::lse_does_not_change_o", |site, case| {
        let tensors = Tensors::new(case);
        let (with, _) = run(site, &Case { lse: true, ..case.clone() }, &tensors)?;
        let (without, _) = run(site, &Case { lse: false, ..case.clone() }, &tensors)?;
        same_bits("without LSE", &without, &Bits { lse: Vec::new(), ..with })
    });
}

/// The same call gives the same bits, whatever outputs and workspace held before.
#[test]
fn the_same_call_twice() {
    check("properties::the_same_call_twice", |site, case| {
        let mut launch = Launch::new(site, case, &Tensors::new(case))?;
        launch.run()?;
        let first = launch.read()?;
        launch.run()?;
        same_bits("second run", &launch.read()?, &first)?;
        launch.fill(0x00)?;
        launch.run()?;
        same_bits("after zeros", &launch.read()?, &first)
    });
}

/// What lies beyond lengths and in gaps does not matter: NaN, infinity, or a large number.
#[test]
fn memory_beyond_does_not_matter() {
    check("properties::memory_beyond_does_not_matter", |site, case| {
        let (want, _) = run(site, case, &Tensors::new(case))?;
        for value in [0.0, 30000.0, f32::INFINITY, f32::NEG_INFINITY] {
            let (got, _) = run(site, case, &Tensors::filled(case, value))?;
            same_bits(&format!("with {value}"), &got, &want)?;
        }
        Ok(())
    });
}

/// With q = 0 every key weighs the same, so that O counts the marks that V makes at positions: exactly the visible
/// tokens, each once. Random V averages out over long KV and would hide a tile.
#[test]
fn every_token_counts_once() {
    check("properties::every_token_counts_once", |site, case| {
        let case = Case { data: Data::Positions, output: Format::F32, ..case.clone() };
        let tensors = Tensors::new(&case);
        let (bits, _) = run(site, &case, &tensors)?;
        let output = bits.output(&case);
        let expected = tensors.expected(&case);
        for (row, (got, want)) in output.o.iter().zip(&expected).enumerate() {
            let lse_tolerance = want.lse_tolerance;
            for (element, (got, want)) in got.iter().zip(&want.o).enumerate() {
                // Counts are exact in fp32, and so are the weights; sinks, dividing and merging are not. They move a
                // row's sum, and so its LSE, by what they move O relative to it.
                let close = (got - want).abs() <= lse_tolerance * want.abs();
                if !close {
                    return Err(format!("row {row}, element {element}: mean of the marks {got}, want {want}").into());
                }
            }
        }
        Ok(compare(&case, &expected, &output)?)
    });
}

/// A key that outweighs all others makes O its V, wherever it is: on both sides of every edge of a tile, a chunk
/// and a split.
#[test]
fn a_needle_at_every_edge() {
    check("properties::a_needle_at_every_edge", |site, case| {
        let case = Case { scale: None, sk: case.sk.max(1), lengths: Lengths::Full, ..case.clone() };
        let edges = edges(site, &case)?;
        let needles = case.batch * case.kv_heads;
        for positions in edges.chunks(needles) {
            let case = Case { data: Data::Needles(positions.to_vec()), ..case.clone() };
            let tensors = Tensors::new(&case);
            let (bits, _) = run(site, &case, &tensors)?;
            compare(&case, &tensors.expected(&case), &bits.output(&case))?;
        }
        Ok(())
    });
}

/// The first and last key, and the keys beside edges; for a long KV a selection.
fn edges(site: &Site, case: &Case) -> Result<Vec<usize>, Failure> {
    let plan = plan_case(site, case)?;
    let chunk = plan.geometry().chunk as usize;
    let lengths = splitkv::Lengths { queries: case.sq, keys: case.sk };
    let splits = plan.units_of(&vec![lengths; case.batch]).into_iter().flat_map(|unit| {
        let tokens = plan.tokens(unit, lengths);
        [tokens.start, tokens.end]
    });
    let mut edges: Vec<usize> = splits.chain((0..=case.sk).step_by(chunk)).chain([case.sk]).collect();
    edges.sort_unstable();
    edges.dedup();
    let mut keys: Vec<usize> = edges.iter().flat_map(|edge| [edge.wrapping_sub(1), *edge]).collect();
    keys.retain(|key| *key < case.sk);
    keys.dedup();
    // As many as four runs hold, evenly chosen, the ends among them.
    let most = (4 * case.batch * case.kv_heads).max(2);
    if keys.len() > most {
        keys = (0..most).map(|i| keys[i * (keys.len() - 1) / (most - 1)]).collect();
    }
    Ok(keys)
}

/// Under `Tokens`, a sequence has the same bits alone as in a batch.
#[test]
fn a_sequence_alone() {
    check("properties::a_sequence_alone", |site, case| {
        let tile = TILE_N as u32;
        let splits = match case.splits {
            Splits::Tokens(n) => Splits::Tokens(n),
            // Where nothing may be split, one split takes all.
            _ if case.is_causal_e4m3() => Splits::Tokens((case.sk as u32).next_multiple_of(tile).max(tile)),
            _ => Splits::Tokens((case.sk as u32 / 4).next_multiple_of(tile).max(tile)),
        };
        let case = Case { splits, ..case.clone() };
        let tensors = Tensors::new(&case);
        let (together, _) = run(site, &case, &tensors)?;
        let (queries, lengths) = (case.query_lengths(), case.lengths());
        for (index, length) in lengths.iter().enumerate() {
            // Alone, its length is the maximum, and it has all pages to itself.
            let mut alone = Case { batch: 1, sk: *length, lengths: Lengths::Full, ..case.clone() };
            if let Queries::Packed { lengths, .. } = &mut alone.queries {
                *lengths = vec![queries[index] as u32];
            }
            match &mut alone.kv {
                Kv::Dense => {}
                Kv::Packed { room, .. } => *room = vec![*length as u32],
                Kv::Paged { shared, .. } => *shared = 0,
            }
            let (got, _) = run(site, &alone, &tensors.sequence(index, &alone))?;
            same_bits(&format!("sequence {index}"), &got, &together.sequence(&case, index))?;
        }
        Ok(())
    });
}

/// The one-call function computes what plan and executor compute.
#[test]
fn the_one_call_function() {
    check("properties::the_one_call_function", |site, case| {
        let kv_lens = match &case.lengths {
            Lengths::Full => None,
            Lengths::Host(lengths) | Lengths::Device(lengths) => Some(lengths.clone()),
        };
        let lengths = kv_lens.clone().map_or(Lengths::Full, Lengths::Host);
        // Its sequences lie apart.
        let case = Case { lengths, queries: Queries::Dense, kv: Kv::Dense, ..case.clone() };
        let kv_lens = kv_lens.map(|lens| lens.iter().map(|&len| len.min(case.sk as u32)).collect());
        let mut launch = Launch::new(site, &case, &Tensors::new(&case))?;
        launch.run()?;
        let given = launch.given();
        let problem = problem(&case);
        let options = AttentionOptions {
            causal: case.causal,
            window: problem.window,
            scale: case.scale,
            softcap: case.softcap,
            sink: given.sink.clone(),
            kv_lens,
            lse: case.lse,
            o_dtype: Some(case.output.into()),
            descales: launch.given().descales.clone(),
            plan: options(&case),
        };
        let (o, lse) = attention(&site.device, &site.kernels, &given.q, &given.k, &given.v, &options)?;
        let bytes = |tensor: &Tensor| {
            let mut bytes = vec![0; tensor.elements() * tensor.dtype().size_of()];
            tensor.buffer().read(tensor.offset(), &mut bytes).map(|()| bytes)
        };
        let lse = lse.as_ref().map(bytes).transpose()?.unwrap_or_default();
        same_bits("in one call", &Bits { o: bytes(&o)?, lse }, &launch.read()?)
    });
}
