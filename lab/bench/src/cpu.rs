//! Measuring on the host: the CPU backend's configs, against each other and against peers.

use std::cell::RefCell;
use std::collections::BTreeMap;

use flashcore_cpu::{CpuConfig, Options as CpuOptions, attention_with};
use flashcore_problem::{POISON, Problem, Tensor};

use crate::answers::{Answers, HostInputs};
use crate::defences::{AFTERWARDS_SEED, Expected, INSPECTION_SEEDS, Output, Rig};
use crate::error::BenchError;
use crate::host_clock::{called, now_us};
use crate::identity::{LaunchMode, SubjectInfo};
use crate::subject::{Stopwatch, Subject, Trouble};

/// Memory written to flush the last-level cache, bytes: more than hosts have.
const FLUSH_BYTES: usize = 256 << 20;

/// Tensors of a problem in host memory.
#[derive(Debug)]
struct Place {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Vec<f32>,
}

/// Everything that inspecting subjects of one problem on the host takes.
#[derive(Debug)]
pub struct CpuBed {
    problem: Problem,
    places: RefCell<[Place; 2]>,
    masters: BTreeMap<u64, HostInputs>,
    answers: Answers,
}

impl CpuBed {
    /// Draws inputs and computes what is right.
    ///
    /// # Errors
    /// What the reference says of the problem.
    pub fn new(problem: &Problem) -> Result<CpuBed, BenchError> {
        let mut bed = CpuBed::blind(problem);
        for seed in INSPECTION_SEEDS.into_iter().chain([AFTERWARDS_SEED]) {
            let inputs = HostInputs::draw(problem, seed);
            bed.answers.add(problem, seed, &inputs)?;
            bed.masters.insert(seed, inputs);
        }
        Ok(bed)
    }

    /// Draws inputs and knows no answers: for a process that is to run kernels while another one judges them.
    pub fn blind(problem: &Problem) -> CpuBed {
        let place = |seed: u64| {
            let HostInputs { q, k, v } = HostInputs::draw(problem, seed);
            Place {
                q,
                k,
                v,
                out: Tensor::poisoned(problem.out_dtype(), *problem.o_layout()),
                lse: vec![f32::NAN; if problem.return_lse() { problem.lse_len() } else { 0 }],
            }
        };
        CpuBed {
            problem: problem.clone(),
            places: RefCell::new([place(INSPECTION_SEEDS[0]), place(INSPECTION_SEEDS[1])]),
            masters: BTreeMap::new(),
            answers: Answers::default(),
        }
    }

    /// The problem.
    pub fn problem(&self) -> &Problem {
        &self.problem
    }

    /// Copies inputs into a place, into the same memory: subjects hold its address.
    pub fn load(&self, place: usize, inputs: &HostInputs) {
        let place = &mut self.places.borrow_mut()[place % 2];
        let to = [&mut place.q, &mut place.k, &mut place.v];
        for (to, from) in to.into_iter().zip([&inputs.q, &inputs.k, &inputs.v]) {
            to.copy_from(from);
        }
    }

    /// Does something with Q and the output of a place.
    pub fn with_place<T>(&self, place: usize, act: impl FnOnce(&Tensor, &mut Tensor) -> T) -> T {
        let Place { q, out, .. } = &mut self.places.borrow_mut()[place % 2];
        act(q, out)
    }

    /// Does something with the log-sum-exp of a place: no elements where the problem asks for none.
    pub fn with_lse<T>(&self, place: usize, act: impl FnOnce(&mut [f32]) -> T) -> T {
        act(&mut self.places.borrow_mut()[place % 2].lse)
    }

    /// Fills the output and the log-sum-exp of a place with poison.
    pub fn poison(&self, place: usize) {
        self.with_place(place, |_, out| out.bytes_mut().fill(POISON));
        self.with_lse(place, |lse| lse.fill(f32::from_ne_bytes([POISON; 4])));
    }

    /// Addresses and sizes in bytes of q, k, v and out of the place that is timed, for peers.
    pub fn addresses(&self) -> [(u64, usize); 4] {
        let places = self.places.borrow();
        let Place { q, k, v, out, .. } = &places[0];
        [q, k, v, out].map(|tensor| (tensor.bytes().as_ptr().addr() as u64, tensor.bytes().len()))
    }

    /// Addresses of the scales of q, k and v, where the problem has them.
    pub fn scales(&self) -> Option<[u64; 3]> {
        let places = self.places.borrow();
        let Place { q, k, v, .. } = &places[0];
        match [q, k, v].map(|tensor| tensor.scales()) {
            [Some(q), Some(k), Some(v)] => Some([q, k, v].map(|scales| scales.as_ptr().addr() as u64)),
            _ => None,
        }
    }

    fn run(&self, config: CpuConfig, place: usize) -> Result<(), Trouble> {
        let mut places = self.places.borrow_mut();
        let Place { q, k, v, out, lse } = &mut places[place];
        let options = CpuOptions {
            config: Some(config),
            ..CpuOptions::default()
        };
        let lse = self.problem.return_lse().then_some(lse.as_mut_slice());
        attention_with(
            &options,
            &self.problem,
            q.view(),
            k.view(),
            v.view(),
            &mut out.view_mut(),
            lse,
        )
        .map_err(|error| Trouble::new(error.to_string()))
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

    /// Gives it another name in tables.
    pub fn labelled(mut self, label: impl Into<String>) -> CpuSubject<'a> {
        self.info.label = label.into();
        self
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

/// A subject on a [`CpuBed`]. A call has ended when it returns, so a snapshot is what is there.
pub struct CpuRig<'r, 's, 't> {
    /// The tensors.
    pub bed: &'r CpuBed,
    /// The subject, bound to place 0.
    pub subject: &'r mut (dyn Subject + 's),
    /// The same bound to place 1, if it can be.
    pub elsewhere: Option<&'r mut (dyn Subject + 't)>,
}

impl Rig for CpuRig<'_, '_, '_> {
    fn problem(&self) -> &Problem {
        &self.bed.problem
    }

    fn expected(&self, seed: u64) -> &Expected {
        self.bed.answers.of(seed)
    }

    fn load(&mut self, place: usize, seed: u64) -> Result<(), Trouble> {
        if let Some(inputs) = self.bed.masters.get(&seed) {
            self.bed.load(place, inputs);
        }
        match place {
            0 => self.subject.inputs_changed(),
            _ => Ok(()),
        }
    }

    fn poison(&mut self, place: usize) -> Result<(), Trouble> {
        self.bed.poison(place);
        Ok(())
    }

    fn pause(&mut self) -> Result<(), Trouble> {
        Ok(())
    }

    fn run(&mut self, place: usize) -> Result<bool, Trouble> {
        match (place, &mut self.elsewhere) {
            (0, _) => self.subject.call()?,
            (_, Some(subject)) => subject.call()?,
            (_, None) => return Ok(false),
        }
        Ok(true)
    }

    fn snapshot(&mut self, _place: usize) -> Result<(), Trouble> {
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Trouble> {
        Ok(())
    }

    fn read(&mut self, place: usize, _what: Output) -> Result<Tensor, Trouble> {
        if place == 0
            && let Some(answer) = self.subject.answer()?
        {
            return Ok(answer);
        }
        Ok(self.bed.with_place(place, |_, out| out.clone()))
    }

    fn read_lse(&mut self, place: usize) -> Result<Option<Vec<f32>>, Trouble> {
        let computes = self.bed.problem.return_lse() && self.subject.info().is_ours();
        Ok(computes.then(|| self.bed.with_lse(place, |lse| lse.to_vec())))
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
