//! What only a GPU can prove about this crate. Where there is none, each test is skipped and says
//! why; `FLASHCORE_REQUIRE_GPU=1` makes that a failure. One test runs at a time, because some
//! measure time or memory.
//!
//! On a machine without cargo, copy the test binary (`target/debug/deps/it-…`, which `cargo test -p
//! flashcore-cuda --test it --no-run` prints) and run it there: `./it gpu --nocapture`.
//!
//! Tests that destroy the context, or need another environment, run in child processes.

#![allow(unsafe_code)]

mod children;
mod graphs;
mod launches;
mod lifetimes;
mod memory;
mod modules;
mod overlap;
mod ptx;
mod ragged;
mod tables;

use std::sync::Mutex;

use flashcore_cuda::{
    Context, CudaError, DeviceSlice, Function, LaunchShape, Module, ModuleOptions, PreparedLaunch, Stream, devices,
};
use flashcore_ir::{Arg, BufferSpec, Launch, Target};

/// A check passes with a line worth reading, or fails with a reason.
type Outcome = Result<String, Box<dyn std::error::Error>>;

/// Fails the check unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)*) => {
        let holds: bool = $condition;
        if !holds {
            return Err(format!($($text)*).into());
        }
    };
}
pub(crate) use ensure;

/// Loads PTX with what it declares; of a text that cannot be read, which the driver refuses, that is nothing.
fn load_ptx(context: &Context, ptx: &str, options: &ModuleOptions) -> Result<Module, CudaError> {
    let declared = flashcore_ptx::PtxModule::declarations(ptx);
    let kernels = declared.as_ref().map(|module| module.kernels()).unwrap_or_default();
    // SAFETY: the kernels are those of the text.
    unsafe { Module::load(context, ptx, &kernels, options) }
}

/// Launches of these tests' kernels. Each touches only the buffers that it is given, or is refused; buffers outlive the
/// wait for the stream, and no other stream uses them meanwhile.
trait Own {
    fn prepared<'a>(&self, launch: &Launch, buffers: &[DeviceSlice<'a>]) -> Result<PreparedLaunch<'a>, CudaError>;
    fn ran(&self, stream: &Stream, launch: &Launch, buffers: &[DeviceSlice<'_>]) -> Result<(), CudaError>;
    /// # Safety
    /// As [`Function::run`].
    unsafe fn launch(&self, stream: &Stream, shape: &LaunchShape, given: &[KernelArg<'_>]) -> Result<(), CudaError> {
        let (launch, buffers) = launch_of(shape, given);
        self.ran(stream, &launch, &buffers)
    }
}

/// An argument of a kernel of PTX: a whole buffer, or a number.
#[derive(Clone, Copy)]
enum KernelArg<'a> {
    Slice(DeviceSlice<'a>),
    U32(u32),
    I32(i32),
    U64(u64),
    F32(f32),
}

fn launch_of<'a>(shape: &LaunchShape, given: &[KernelArg<'a>]) -> (Launch, Vec<DeviceSlice<'a>>) {
    let (mut buffers, mut specs) = (Vec::new(), Vec::new());
    let mut arg = |given: &KernelArg<'a>| match *given {
        KernelArg::Slice(slice) => {
            buffers.push(slice);
            specs.push(BufferSpec {
                name: "a buffer",
                bytes: slice.len() as u64,
                written: true,
                align: 1,
            });
            Arg::Buffer {
                slot: buffers.len() - 1,
                byte_offset: 0,
            }
        }
        KernelArg::U32(value) => Arg::U32(value),
        KernelArg::I32(value) => Arg::I32(value),
        KernelArg::U64(value) => Arg::U64(value),
        KernelArg::F32(value) => Arg::F32(value),
    };
    let args = given.iter().map(&mut arg).collect();
    let launch = Launch {
        grid: shape.grid,
        block: shape.block,
        cluster: shape.cluster,
        dynamic_shared_bytes: shape.dynamic_shared_bytes,
        programmatic: shape.programmatic_dependent,
        buffers: specs,
        args,
    };
    (launch, buffers)
}

impl Own for Function {
    fn prepared<'a>(&self, launch: &Launch, buffers: &[DeviceSlice<'a>]) -> Result<PreparedLaunch<'a>, CudaError> {
        // SAFETY: as the trait says.
        unsafe { self.prepare(launch, buffers) }
    }

    fn ran(&self, stream: &Stream, launch: &Launch, buffers: &[DeviceSlice<'_>]) -> Result<(), CudaError> {
        // SAFETY: as the trait says.
        unsafe { self.run(stream, launch, buffers) }
    }
}

fn enqueue(launch: &PreparedLaunch<'_>, stream: &Stream) -> Result<(), CudaError> {
    // SAFETY: as `Own` says.
    unsafe { launch.enqueue(stream) }
}

fn enqueue_all(launches: &[PreparedLaunch<'_>], stream: &Stream) -> Result<(), CudaError> {
    // SAFETY: as `Own` says.
    unsafe { PreparedLaunch::enqueue_all(launches, stream) }
}

/// What most checks need.
struct Bench {
    context: Context,
    stream: Stream,
}

impl Bench {
    fn new() -> Result<Self, CudaError> {
        let context = Context::new(0)?;
        let stream = Stream::new(&context)?;
        Ok(Self { context, stream })
    }

    fn is_hopper(&self) -> bool {
        self.context.info().compute_capability == (9, 0)
    }
}

/// Asserts that a result is an error whose message has all the parts; returns the message.
fn refused<T>(result: Result<T, CudaError>, parts: &[&str]) -> Outcome {
    let text = match result {
        Ok(_) => return Err(format!("succeeded, but should have failed with {parts:?}").into()),
        Err(error) => error.to_string(),
    };
    for part in parts {
        ensure!(text.contains(part), "the message lacks {part:?}: {text}");
    }
    Ok(text)
}

/// Runs a check on device 0 and prints its line; skips it where there is no driver or device.
fn run(check: fn(&Bench) -> Outcome) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _lock = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Err(error) = devices() {
        assert!(std::env::var_os("FLASHCORE_REQUIRE_GPU").is_none(), "{error}");
        eprintln!("skipped: {error}");
        return;
    }
    match Bench::new().map_err(Into::into).and_then(|bench| check(&bench)) {
        Ok(line) => println!("{line}"),
        Err(error) => panic!("{error}"),
    }
}

macro_rules! tests {
    ($($name:ident = $check:path;)*) => {
        $(#[test]
        fn $name() {
            run($check);
        })*
    };
}

tests! {
    the_device_is_described = device_is_described;
    memory_is_copied_filled_and_bounded = memory::copies;
    memory_that_is_not_there_is_refused = memory::too_much;
    streams_own_borrowed_default = memory::streams;
    streams_wait_for_events = memory::waiting;
    vector_add_at_odd_sizes = launches::vector_add;
    arguments_arrive_as_they_were_given = launches::arguments;
    wrong_arguments_are_refused = launches::wrong_arguments;
    shapes_past_the_limits_are_refused = launches::shapes;
    dynamic_shared_memory_to_the_last_byte = launches::dynamic_shared;
    clusters = launches::clusters;
    dependent_launches_keep_their_order = launches::dependent;
    launches_overlap = overlap::programmatic;
    tensor_map_boxes_swizzle_zero_fill = launches::tensor_map;
    tensor_map_ragged_copies_end_with_their_sequence = ragged::copies;
    events_agree_with_the_clock = launches::timing;
    launch_overhead = launches::overhead;
    eight_threads_at_once = launches::threads;
    memory_is_freed_after_the_kernels_that_use_it = lifetimes::dropped;
    graphs_keep_their_memory = lifetimes::of_graphs;
    a_first_call_ends_no_capture_of_another_thread = lifetimes::captures;
    a_stream_that_joins_a_capture_takes_no_memory = lifetimes::joined;
    graph_replay_equals_launches = graphs::replay;
    a_failed_capture_leaves_the_stream_usable = graphs::failed_capture;
    a_kernel_of_the_kernel_language = launches::kernel_language;
    tables_many_take_no_more_than_a_few = tables::bounded;
    tables_graphs_keep_theirs = tables::of_graphs;
    module_identity_caches_log = modules::identity;
    module_bad_ptx_and_its_log = modules::bad_ptx;
    module_static_shared_overflow = modules::static_overflow;
    module_local_memory_is_refused = modules::local_memory;
    module_performance_warnings_are_refused = modules::warnings;
    warnings_outlive_the_process = children::warnings_are_remembered;
    a_read_only_cache_folder_is_a_note = children::read_only_cache;
    no_visible_device_is_a_typed_error = children::no_device;
    illegal_address_names_the_kernel = children::illegal_address;
    misaligned_address_names_the_kernel = children::misaligned_address;
    trap_names_the_kernel = children::trap;
}

fn device_is_described(bench: &Bench) -> Outcome {
    let info = bench.context.info();
    ensure!(!info.name.is_empty() && info.multiprocessors > 0, "{info:?}");
    ensure!(info.limits.threads_per_block == 1024, "{:?}", info.limits);
    ensure!(info.limits.static_shared_per_block == 49_152, "{:?}", info.limits);
    // A launch gets one verdict, whether it is proved for a card or for the device itself.
    let known = Target::for_capability(info.compute_capability.0, info.compute_capability.1);
    if let Some(target) = known {
        ensure!(info.limits == target.limits(), "{:?}", info.limits);
    }
    refused(Context::new(4096), &["no CUDA device 4096"])?;
    ensure!(Context::new(0)? == bench.context, "two contexts of one device differ");
    let (free, total) = bench.context.memory()?;
    ensure!(free > 0 && free <= total, "{free} of {total} B free");
    Ok(format!(
        "{} {} {}, CUDA {}, driver {}, {} MiB free",
        info.name,
        info.uuid,
        info.architecture(),
        info.cuda_version,
        info.driver_release.as_deref().unwrap_or("not told"),
        free >> 20
    ))
}
