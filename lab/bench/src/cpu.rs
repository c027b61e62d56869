//! Measuring on the host: the CPU backend's configs, against each other and against peers.

use std::cell::RefCell;
use std::time::Duration;

use flashcore_cpu::{CpuConfig, Options as CpuOptions, attention_with};
use flashcore_problem::{InputKind, Inputs, Lengths, POISON, Problem, Tensor};

use crate::defences::{INSPECTION_SEEDS, Output};
use crate::host_clock::{called, now_us};
use crate::planted::Spoil;
use crate::{Bed, LaunchMode, PeerPlace, PeerTensors, Stopwatch, Subject, SubjectInfo, Trouble, draw};

/// Memory written to flush the last-level cache, bytes: more than hosts have.
const FLUSH_BYTES: usize = 256 << 20;

#[derive(Debug)]
struct Place {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Lengths<Vec<i32>>,
    out: Tensor,
    lse: Vec<f32>,
}

/// Two sets of tensors of a problem in host memory.
#[derive(Debug)]
pub struct CpuBed {
    problem: Problem,
    places: RefCell<[Place; 2]>,
    snapshot: RefCell<Option<Tensor>>,
}

impl CpuBed {
    /// Allocates the tensors and fills them with normal inputs.
    pub fn new(problem: &Problem) -> CpuBed {
        let place = |seed: u64| {
            let Inputs { q, k, v, lengths, .. } = draw(problem, InputKind::Normal, seed);
            Place {
                q,
                k,
                v,
                lengths,
                out: Tensor::poisoned(problem.out_dtype(), *problem.o_layout()),
                lse: vec![f32::NAN; if problem.return_lse() { problem.lse_len() } else { 0 }],
            }
        };
        CpuBed {
            problem: problem.clone(),
            places: RefCell::new([place(INSPECTION_SEEDS[0]), place(INSPECTION_SEEDS[1])]),
            snapshot: RefCell::default(),
        }
    }

    /// Calls `act` with Q, the output and the log-sum-exp (empty if not asked for) of a place.
    fn with<T>(&self, place: usize, act: impl FnOnce(&Tensor, &mut Tensor, &mut [f32]) -> T) -> T {
        let Place { q, out, lse, .. } = &mut self.places.borrow_mut()[place % 2];
        act(q, out, lse)
    }

    fn run(&self, config: CpuConfig, place: usize) -> Result<(), Trouble> {
        let mut places = self.places.borrow_mut();
        let Place {
            q,
            k,
            v,
            lengths,
            out,
            lse,
        } = &mut places[place];
        let options = CpuOptions {
            config: Some(config),
            ..CpuOptions::default()
        };
        let lse = self.problem.return_lse().then_some(lse.as_mut_slice());
        let (inputs, lengths, out) = ([q.view(), k.view(), v.view()], lengths.as_slices(), &mut out.view_mut());
        let ran = attention_with(&options, &self.problem, inputs, &lengths, out, lse);
        ran.map_err(|error| Trouble::new(error.to_string()))
    }
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
        let id = config.to_string();
        CpuSubject {
            info: SubjectInfo {
                kernel: Some(id.clone()),
                options: format!("{} threads", rayon::current_num_threads()),
                ..SubjectInfo::new(id, LaunchMode::Host)
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
        let place = &mut self.places.borrow_mut()[place % 2];
        let to = [&mut place.q, &mut place.k, &mut place.v];
        for (to, from) in to.into_iter().zip([&inputs.q, &inputs.k, &inputs.v]) {
            to.copy_from(from);
        }
        place.lengths.clone_from(&inputs.lengths);
        Ok(())
    }

    fn poison(&self, place: usize) -> Result<(), Trouble> {
        self.with(place, |_, out, lse| {
            out.bytes_mut().fill(POISON);
            lse.fill(f32::from_ne_bytes([POISON; 4]));
        });
        Ok(())
    }

    fn snapshot(&self, place: usize) -> Result<(), Trouble> {
        let copy = self.with(place, |_, out, _| out.clone());
        self.snapshot.replace(Some(copy));
        Ok(())
    }

    fn see(&self, place: usize, what: Output, look: &mut dyn FnMut(&Tensor)) -> Result<(), Trouble> {
        match what {
            Output::Final => self.with(place, |_, out, _| look(out)),
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
        let places = self.places.borrow();
        let Place { q, k, v, out, .. } = &places[0];
        let tensors = [q, k, v, out].map(|tensor| (tensor.bytes().as_ptr().addr() as u64, tensor.bytes().len()));
        let scales = match [q, k, v].map(Tensor::scales) {
            [Some(q), Some(k), Some(v)] => Some([q, k, v].map(|scales| scales.as_ptr().addr() as u64)),
            _ => None,
        };
        PeerTensors::new(PeerPlace::Cpu, &self.problem, tensors, scales)
    }
}

impl Spoil for CpuBed {
    fn spoil(&self, place: usize, act: &mut dyn FnMut(&Tensor, &mut Tensor, &mut [f32])) -> Result<(), Trouble> {
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
        self.with(place, |_, out, _| {
            let end = out.bytes().len();
            out.bytes_mut()[end + words as usize] = 0;
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
