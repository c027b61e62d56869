//! The lines of a kernel that use most of a resource, and the cost of memory accesses by line.

use flashcore_ir::{Profile, SourceLine};
use flashcore_sim::{Class, Line, MemorySite};

use super::code::Code;
use super::observe::Observation;
use super::sm::{Resource, Sm};

/// A line's share of a kernel's use of a resource.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LineShare {
    /// The kernel's own line, not that of a verb.
    pub line: SourceLine,
    /// Its share, at most 1.
    pub share: f64,
}

/// Memory accesses of one line, in a number of blocks that need not be whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Accesses {
    /// The kernel's own line.
    pub line: Line,
    /// The kind of access.
    pub class: Class,
    /// Executions by a warp.
    pub requests: f64,
    /// As [`MemorySite::transactions`].
    pub transactions: f64,
    /// The minimum for the same bytes.
    pub ideal: f64,
    /// Whether they are where asynchronous copies of the line land in shared memory.
    pub lands: bool,
}

impl Accesses {
    /// Of one of `blocks` that were counted together.
    pub(crate) fn of(site: &MemorySite, lands: bool, blocks: f64) -> Accesses {
        let all = Accesses {
            line: site.line,
            class: site.class,
            requests: site.requests as f64,
            transactions: site.transactions as f64,
            ideal: site.ideal as f64,
            lands,
        };
        all.times(1.0 / blocks)
    }

    fn times(self, times: f64) -> Accesses {
        Accesses {
            requests: times * self.requests,
            transactions: times * self.transactions,
            ideal: times * self.ideal,
            ..self
        }
    }

    /// Whether they are passes over shared memory: those of products read their operands.
    pub fn is_shared(&self) -> bool {
        matches!(self.class, Class::LoadShared | Class::StoreShared | Class::Tensor)
    }

    /// Those of a longer problem, by a line through two.
    pub(crate) fn extrapolated(
        short: &[Accesses],
        longer: &[Accesses],
        line: impl Fn(f64, f64) -> f64,
    ) -> Vec<Accesses> {
        let at = |long: &Accesses| {
            let same = |short: &&Accesses| (short.line, short.class) == (long.line, long.class);
            let short = short.iter().find(same);
            let of = |of: fn(&Accesses) -> f64| line(short.map_or(0.0, of), of(long));
            Accesses {
                requests: of(|accesses| accesses.requests),
                transactions: of(|accesses| accesses.transactions),
                ideal: of(|accesses| accesses.ideal),
                ..*long
            }
        };
        longer.iter().map(at).collect()
    }

    fn add(&mut self, other: &Accesses, times: f64) {
        let other = other.times(times);
        self.requests += other.requests;
        self.transactions += other.transactions;
        self.ideal += other.ideal;
    }
}

impl Observation {
    /// The line that uses most of a resource in the middle block of the main step. `None` if no
    /// line uses it.
    pub fn hottest(&self, resource: Resource, profile: &Profile) -> Option<LineShare> {
        self.lines(resource, profile).into_iter().next()
    }

    /// The lines that use a resource in the middle block of the main step, most of it first.
    pub fn lines(&self, resource: Resource, profile: &Profile) -> Vec<LineShare> {
        let Some(step) = self.steps.first() else {
            return Vec::new();
        };
        let samples = &step.seen.samples;
        let Some(middle) = samples.get(step.seen.middle()) else {
            return Vec::new();
        };
        let sm = Sm::of(profile, None);
        let ran = middle.runs.iter().enumerate().filter(|(_, ran)| ran.runs > 0.0);
        let clocks = ran.map(|(at, ran)| {
            let work = step.code.work_once(at, ran, middle.misses);
            (at, ran.runs * sm.clocks(&work, resource))
        });
        let mut lines = by_line(&step.code, clocks);
        let all: f64 = lines.iter().map(|line| line.share).sum();
        lines.retain(|line| line.share > 0.0);
        lines.sort_by(|a, b| b.share.total_cmp(&a.share));
        lines.iter_mut().for_each(|line| line.share /= all);
        lines
    }

    /// Memory accesses by line and kind, of all blocks of the main step, in program order.
    pub fn accesses(&self) -> Vec<Accesses> {
        let mut all: Vec<Accesses> = Vec::new();
        let Some(step) = self.steps.first() else { return all };
        for (sample, blocks) in step.blocks_of_samples() {
            for one in &step.seen.samples[sample].accesses {
                let same = |sum: &Accesses| (sum.line, sum.class) == (one.line, one.class);
                let place = all.iter().position(same).unwrap_or_else(|| {
                    all.push(one.times(0.0));
                    all.len() - 1
                });
                all[place].add(one, blocks);
            }
        }
        all
    }

    /// Cost of the memory accesses of each line in one block of the main step.
    pub fn memory(&self) -> &[MemorySite] {
        self.steps.first().map_or(&[], |step| &step.seen.memory)
    }
}

/// What instructions have of something, by line.
pub(super) fn by_line(code: &Code, parts: impl Iterator<Item = (usize, f64)>) -> Vec<LineShare> {
    let mut lines: Vec<LineShare> = Vec::new();
    for (at, share) in parts {
        let line = code.line(at);
        match lines.iter_mut().find(|known| known.line == line) {
            Some(known) => known.share += share,
            None => lines.push(LineShare { line, share }),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use flashcore_ir::Target;
    use flashcore_kernels::Plan;
    use flashcore_problem::Problem;

    use super::*;

    fn observed(id: &str) -> Observation {
        let problem = Problem::named("small").unwrap();
        Observation::of(&Plan::new(&problem, &id.parse().unwrap(), Target::Sm89).unwrap()).unwrap()
    }

    #[test]
    fn lines_share_out_a_resource_and_conflicts_are_at_theirs() {
        let l4 = Profile::named("l4").unwrap();
        let linear = observed("mma/m64n64-w4x1-s2-b1-qsh-lin-cond");
        let swizzled = observed("mma/m64n64-w4x1-s2-b1-qsh-xor-cond");
        let beyond = |observed: &Observation| -> u64 {
            let sites = observed.memory().iter();
            sites.map(|site| site.transactions - site.ideal).sum()
        };
        assert!(beyond(&linear) > 4 * beyond(&swizzled).max(1));
        let shared = linear.hottest(Resource::Shared, l4).unwrap();
        assert!(shared.share > 0.2 && shared.share <= 1.0);
        assert!(linear.hottest(Resource::Dram, l4).is_none());
        let all = linear.lines(Resource::Shared, l4);
        assert_eq!(all[0], shared);
        assert!((all.iter().map(|line| line.share).sum::<f64>() - 1.0).abs() < 1e-9);
        let products = linear.hottest(Resource::Tensor, l4).unwrap();
        assert!(products.line.file.contains("mma") && products.share > 0.3);
    }
}
