//! Measuring on the host: the CPU backend's configs, against each other and against peers.

use std::cell::RefCell;
use std::time::Duration;

use flashcore_cpu::{CpuConfig, CpuError, Options as CpuOptions};
use flashcore_problem::{Carried, InputKind, Inputs, Name, POISON, Problem, Saved, Tensor};

use crate::bed::{poisoned_outputs, with_outputs};
use crate::defences::{INSPECTION_SEEDS, Output};
use crate::host_clock::{called, now_us};
use crate::planted::{Spoil, Spoiler};
use crate::{Bed, LaunchMode, PeerPlace, PeerTensors, Stopwatch, Subject, SubjectInfo, Trouble, draw};

/// Memory written to flush the last-level cache, bytes: more than hosts have.
const FLUSH_BYTES: usize = 256 << 20;

#[derive(Debug)]
struct Place {
    inputs: Inputs,
    outs: Vec<Tensor>,
    /// Empty unless candidates write it.
    lse: Vec<f32>,
}

/// Two sets of tensors of a problem in host memory.
#[derive(Debug)]
pub struct CpuBed {
    problem: Problem,
    places: RefCell<[Place; 2]>,
    snapshot: RefCell<Option<Vec<Tensor>>>,
}

impl CpuBed {
    /// Allocates the tensors and fills them with normal inputs; O and the log-sum-exp of a backward problem are
    /// computed where inputs are loaded.
    pub fn new(problem: &Problem) -> CpuBed {
        let place = |seed: u64| Place {
            inputs: draw(problem, InputKind::Normal, seed),
            outs: poisoned_outputs(problem),
            lse: vec![f32::NAN; if problem.writes_lse() { problem.lse_len() } else { 0 }],
        };
        CpuBed {
            problem: problem.clone(),
            places: RefCell::new([place(INSPECTION_SEEDS[0]), place(INSPECTION_SEEDS[1])]),
            snapshot: RefCell::default(),
        }
    }

    /// Calls `act` with Q, the outputs and the log-sum-exp (empty if candidates write none) of a place.
    fn with<T>(&self, place: usize, act: impl FnOnce(&Tensor, &mut [Tensor], &mut [f32]) -> T) -> T {
        let Place { inputs, outs, lse } = &mut self.places.borrow_mut()[place % 2];
        act(&inputs.q, outs, lse)
    }

    fn run(&self, config: CpuConfig, place: usize) -> Result<(), Trouble> {
        let mut places = self.places.borrow_mut();
        let Place { inputs, outs, lse } = &mut places[place];
        let options = CpuOptions {
            config: Some(config),
            ..CpuOptions::default()
        };
        run(&options, &self.problem, inputs, outs, lse).map_err(|error| Trouble::new(error.to_string()))
    }
}

/// Computes a problem from its inputs: O or the gradients, and a log-sum-exp where it is written.
fn run(
    options: &CpuOptions<'_>,
    problem: &Problem,
    inputs: &Inputs,
    outs: &mut [Tensor],
    lse: &mut [f32],
) -> Result<(), CpuError> {
    let carried = inputs.carried(problem)?;
    flashcore_cpu::run(options, problem, with_outputs(carried.operands(), problem, outs, lse))
}

/// A config of the CPU backend on a [`CpuBed`].
#[derive(Debug)]
pub struct CpuSubject<'a> {
    info: SubjectInfo,
    bed: &'a CpuBed,
    config: CpuConfig,
    place: usize,
}

impl<'a> CpuSubject<'a> {
    /// A config bound to a place: 0 is the one that is timed.
    pub fn new(bed: &'a CpuBed, config: CpuConfig, place: usize) -> CpuSubject<'a> {
        CpuSubject {
            info: SubjectInfo {
                options: format!("{} threads", rayon::current_num_threads()),
                ..SubjectInfo::ours(config.to_string(), LaunchMode::Host)
            },
            bed,
            config,
            place: place % 2,
        }
    }
}

impl Subject for CpuSubject<'_> {
    fn info(&self) -> &SubjectInfo {
        &self.info
    }

    fn call(&mut self) -> Result<(), Trouble> {
        self.bed.run(self.config, self.place)?;
        called(self.info.kernel.as_deref().unwrap_or_default())
    }
}

/// A call has ended when it returns, so nothing is queued.
impl Bed for CpuBed {
    fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Copies into the same memory: candidates hold its address.
    fn load(&self, place: usize, inputs: &Inputs) -> Result<(), Trouble> {
        let place = &mut self.places.borrow_mut()[place % 2].inputs;
        let to = [&mut place.q, &mut place.k, &mut place.v];
        for (to, from) in to.into_iter().zip([&inputs.q, &inputs.k, &inputs.v]) {
            to.copy_from(from);
        }
        place.lengths.clone_from(&inputs.lengths);
        let Some(mut saved) = place.saved.take() else {
            return Ok(());
        };
        if let Some(from) = &inputs.saved {
            saved.dout.copy_from(&from.dout);
        }
        let (problem, options) = (self.problem.forward(), CpuOptions::default());
        let Saved { out, lse, .. } = &mut saved;
        let ran = run(&options, &problem, place, std::slice::from_mut(out), lse);
        place.saved = Some(saved);
        ran.map_err(|error| Trouble::new(format!("the forward pass: {error}")))
    }

    fn poison(&self, place: usize) -> Result<(), Trouble> {
        self.with(place, |_, outs, lse| {
            outs.iter_mut().for_each(|out| out.bytes_mut().fill(POISON));
            lse.fill(f32::from_ne_bytes([POISON; 4]));
        });
        Ok(())
    }

    fn snapshot(&self, place: usize) -> Result<(), Trouble> {
        let copy = self.with(place, |_, outs, _| outs.to_vec());
        self.snapshot.replace(Some(copy));
        Ok(())
    }

    fn see(&self, place: usize, what: Output, look: &mut dyn FnMut(&[Tensor])) -> Result<(), Trouble> {
        match what {
            Output::Final => self.with(place, |_, outs, _| look(outs)),
            Output::Snapshot => match &*self.snapshot.borrow() {
                Some(snapshot) => look(snapshot),
                None => return Err(Trouble::new("there is no snapshot")),
            },
        }
        Ok(())
    }

    fn read_lse(&self, place: usize) -> Result<Option<Vec<f32>>, Trouble> {
        let lse = self.with(place, |_, _, lse| lse.to_vec());
        Ok(Some(lse).filter(|lse| !lse.is_empty()))
    }

    fn peer_tensors(&self) -> PeerTensors {
        let Place { inputs, outs, .. } = &self.places.borrow()[0];
        let carried = inputs.carried(&self.problem).ok();
        let operands = carried.as_ref().map(Carried::operands);
        let address = |word: &str| {
            let read = operands.as_ref().and_then(|read| read.memory(Name::from_word(word)?));
            let mut outputs = self.problem.outputs().into_iter().zip(outs);
            let written = || {
                outputs
                    .find(|((name, ..), _)| *name == word)
                    .map(|(_, out)| out.bytes())
            };
            let memory: &[u8] = read.or_else(written)?;
            Some((memory.as_ptr().addr() as u64, memory.len()))
        };
        PeerTensors::new(PeerPlace::Cpu, &self.problem, &address)
    }
}

impl Spoil for CpuBed {
    fn spoil(&self, place: usize, act: &mut Spoiler<'_>) -> Result<(), Trouble> {
        self.with(place, act);
        Ok(())
    }

    fn hang(&self) -> Result<(), Trouble> {
        loop {
            std::thread::sleep(Duration::from_secs(3600));
        }
    }

    /// The bounds check ends the process, as a fault does on a GPU.
    fn write_outside(&self, place: usize, words: u32) -> Result<(), Trouble> {
        self.with(place, |_, outs, _| {
            let end = outs[0].bytes().len();
            outs[0].bytes_mut()[end + words as usize] = 0;
        });
        Ok(())
    }
}

/// The host's clock.
#[derive(Debug, Default)]
pub struct CpuStopwatch {
    laps: Vec<(f64, f64)>,
    flush: Vec<u8>,
}

impl CpuStopwatch {
    fn lap(&mut self, lap: usize) -> &mut (f64, f64) {
        if self.laps.len() <= lap {
            self.laps.resize(lap + 1, (0.0, 0.0));
        }
        &mut self.laps[lap]
    }
}

impl Stopwatch for CpuStopwatch {
    fn begin(&mut self, lap: usize) -> Result<(), Trouble> {
        self.lap(lap).0 = now_us();
        Ok(())
    }

    fn end(&mut self, lap: usize) -> Result<(), Trouble> {
        let now = now_us();
        self.lap(lap).1 = now;
        Ok(())
    }

    fn elapsed_us(&mut self, lap: usize) -> Result<f64, Trouble> {
        let (begin, end) = *self.lap(lap);
        Ok(end - begin)
    }

    fn hold(&mut self) -> Result<(), Trouble> {
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Trouble> {
        self.flush.resize(FLUSH_BYTES, 0);
        for byte in self.flush.iter_mut().step_by(64) {
            *byte = byte.wrapping_add(1);
        }
        std::hint::black_box(&self.flush);
        Ok(())
    }

    fn now_us(&mut self) -> f64 {
        now_us()
    }
}
