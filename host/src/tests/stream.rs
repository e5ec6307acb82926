//! What streams and graphs keep alive, and how runs are ordered.

use super::{device, kernels, refused};
use crate::{Buffer, DType, Error, Executor, Inputs, KvLens, Options, Problem, Splits, Target, Tensor, plan};

#[test]
fn streams_hold_what_work_needs_until_they_are_synchronized() {
    let (device, recorder) = device(Target::Sm90a);
    let stream = device.stream().unwrap();
    let buffer = Buffer::new(&device, 100).unwrap();
    stream.hold([buffer.hold()]).unwrap();
    stream.hold([buffer.hold()]).unwrap();
    drop(buffer);
    assert_eq!(recorder.alive().0, 1);
    stream.synchronize().unwrap();
    assert_eq!(recorder.alive().0, 0);

    stream.hold([Buffer::new(&device, 100).unwrap().hold()]).unwrap();
    drop(stream.clone());
    assert_eq!(recorder.alive().0, 1);
    drop(stream);
    assert_eq!(recorder.alive(), (0, 0));
}

#[test]
fn streams_that_are_never_synchronized_let_go_of_what_is_done() {
    let (device, recorder) = device(Target::Sm90a);
    let stream = device.stream().unwrap();
    let give = |count: usize| {
        for _ in 0..count {
            stream.hold([Buffer::new(&device, 1).unwrap().hold()]).unwrap();
        }
    };
    give(1000);
    assert_eq!(recorder.alive().0, 1000, "no event is done");
    recorder.log().events_done = true;
    give(1000);
    assert!(recorder.alive().0 <= 64, "{:?}", recorder.alive());
    drop(stream);
    assert_eq!(recorder.alive(), (0, 0));
}

#[test]
fn graphs_hold_what_they_captured_and_replay_it() {
    let (device, recorder) = device(Target::Sm90a);
    let (kernels, _folder) = kernels(Target::Sm90a);
    let problem = Problem::new(1, 8, 2, 1, 1000, 128, DType::Bf16).kv_lens(KvLens::Host(vec![900]));
    let options = Options { splits: Splits::Exact(2), ..Options::default() };
    let plan = plan(&problem, &options, device.props(), kernels.catalogue()).unwrap();
    let mut executor = Executor::new(&device, &kernels, &plan).unwrap();
    let stream = device.stream().unwrap();
    let zeros = |shape: Vec<usize>| Tensor::zeros(&device, DType::Bf16, &shape).unwrap();
    let (q, k, v, o) =
        (zeros(problem.q_shape()), zeros(problem.k_shape()), zeros(problem.v_shape()), zeros(problem.o_shape()));
    let inputs = Inputs::new(&q, &k, &v, &o);
    let before = recorder.alive().0;
    let graph = stream
        .capture(|| {
            let nested = stream.capture(|| Ok(()));
            assert_eq!(refused(nested).0, "stream");
            executor.run(&stream, &inputs)
        })
        .unwrap();
    assert_eq!(recorder.alive().0, before, "nothing is allocated while capturing");
    assert_eq!(recorder.log().launches.len(), 0);
    drop((q, k, v, o, executor, kernels));
    assert_eq!(recorder.alive().0, before, "four tensors, workspace, lengths and status");

    let other = device.stream().unwrap();
    graph.launch(&stream).unwrap();
    graph.launch(&other).unwrap();
    assert_eq!(recorder.log().launches.len(), 2);
    drop(graph);
    assert_eq!(recorder.alive().0, before, "its launches may be under way");
    stream.synchronize().unwrap();
    other.synchronize().unwrap();
    assert_eq!(recorder.alive(), (0, 2), "two streams");
}

#[test]
fn a_capture_that_fails_is_ended() {
    let (device, recorder) = device(Target::Sm90a);
    let stream = device.stream().unwrap();
    let failed = stream.capture(|| Err(Error::argument("body", "a fault", "none")));
    assert_eq!(refused(failed).0, "body");
    assert!(!stream.is_capturing());
    assert_eq!(recorder.alive(), (0, 1), "no graph is left");
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| stream.capture(|| panic!("in the body"))));
    assert!(panicked.is_err() && !stream.is_capturing());
    let empty = stream.capture(|| Ok(())).unwrap();
    assert_eq!(refused(stream.capture(|| empty.launch(&stream))).0, "stream");
    empty.launch(&stream).unwrap();
}

#[test]
fn runs_on_another_stream_wait_for_the_last_one() {
    let (device, recorder) = device(Target::Sm90a);
    let (kernels, _folder) = kernels(Target::Sm90a);
    let problem = Problem::new(1, 8, 2, 1, 1000, 128, DType::Bf16);
    let plan = plan(&problem, &Options::default(), device.props(), kernels.catalogue()).unwrap();
    let mut executor = Executor::new(&device, &kernels, &plan).unwrap();
    let zeros = |shape: Vec<usize>| Tensor::zeros(&device, DType::Bf16, &shape).unwrap();
    let (q, k, v, o) =
        (zeros(problem.q_shape()), zeros(problem.k_shape()), zeros(problem.v_shape()), zeros(problem.o_shape()));
    let inputs = Inputs::new(&q, &k, &v, &o);
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    executor.run(&first, &inputs).unwrap();
    executor.run(&first, &inputs).unwrap();
    assert_eq!(recorder.log().waits.len(), 0);
    executor.run(&second, &inputs).unwrap();
    executor.run(&second, &inputs).unwrap();
    let streams: Vec<_> = recorder.log().waits.iter().map(|&(stream, _)| stream).collect();
    assert_eq!(streams, [second.handle()]);
    // What is captured is not executed, and waits for nothing.
    first.capture(|| executor.run(&first, &inputs)).unwrap();
    assert_eq!(recorder.log().waits.len(), 1);
}

#[test]
fn events_belong_to_a_device() {
    let (device, _) = device(Target::Sm90a);
    let (other, _) = super::device(Target::Sm90a);
    let (stream, foreign) = (device.stream().unwrap(), other.stream().unwrap());
    let (start, end) = (stream.record().unwrap(), stream.record().unwrap());
    assert_eq!(end.elapsed_since(&start).unwrap().as_micros(), 1500);
    assert_eq!(refused(foreign.wait(&start)).0, "event");
    assert_eq!(refused(foreign.record().unwrap().elapsed_since(&start)).0, "start");
}
