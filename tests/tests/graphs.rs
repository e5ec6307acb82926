//! Graphs: replay equals eager execution, also at lengths other than the captured ones.

use std::sync::Mutex;

use splitkv_tests::case::{Case, Kv, Lengths};
use splitkv_tests::compare::compare;
use splitkv_tests::data::Tensors;
use splitkv_tests::launch::{Launch, run};
use splitkv_tests::property::check;

/// While a stream is captured, no other thread may wait for the device, as copies do.
static CAPTURE: Mutex<()> = Mutex::new(());

#[test]
fn replay_equals_eager() {
    check("graphs::replay_equals_eager", |site, case| {
        let _alone = CAPTURE.lock();
        let tensors = Tensors::new(case);
        let (want, _) = run(site, case, &tensors)?;
        let mut launch = Launch::new(site, case, &tensors)?;
        let graph = launch.capture()?;
        for byte in [0xff, 0x00] {
            launch.fill(byte)?;
            launch.replay(&graph)?;
            if launch.read()? != want {
                return Err(format!("replay over {byte:#x} differs from eager execution").into());
            }
        }
        Ok(())
    });
}

/// Captured at short lengths, replayed at longer ones up to the planned maximum.
#[test]
fn replay_follows_the_lengths() {
    check("graphs::replay_follows_the_lengths", |site, case| {
        let _alone = CAPTURE.lock();
        let at = |divisor: usize| {
            let lengths = (0..case.batch).map(|b| (case.sk / divisor).saturating_sub(b) as u32);
            // Packed sequences have no room to grow into.
            let kv = if matches!(case.kv, Kv::Packed { .. }) { Kv::Dense } else { case.kv.clone() };
            Case { lengths: Lengths::Device(lengths.collect()), kv, ..case.clone() }
        };
        // All of it lies where the longest sequences have it.
        let tensors = Tensors::new(&at(1));
        let mut launch = Launch::new(site, &at(1), &tensors)?;
        let set = |launch: &Launch, divisor: usize| {
            launch.set_lengths(&at(divisor).lengths().iter().map(|length| *length as i32).collect::<Vec<_>>())
        };
        set(&launch, 8)?;
        let graph = launch.capture()?;
        for divisor in [8, 3, 1, 2] {
            set(&launch, divisor)?;
            launch.fill(0x00)?;
            launch.run()?;
            let want = launch.read()?;
            launch.fill(0xff)?;
            launch.replay(&graph)?;
            if launch.read()? != want {
                return Err(
                    format!("replay at lengths {:?} differs from eager execution", at(divisor).lengths()).into()
                );
            }
            let expected = tensors.expected(&at(divisor));
            compare(&at(divisor), &expected, &want.output(&at(divisor)))?;
        }
        Ok(())
    });
}
