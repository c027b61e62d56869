//! The lines of a kernel that use most of a resource, and the cost of memory accesses by line.

use flashcore_ir::{Node, Profile, SourceLine};
use flashcore_sim::MemorySite;

use super::observe::Observation;
use super::sm::{Resource, Sm};
use super::work::Work;

/// A line's share of a kernel's use of a resource.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LineShare {
    /// The kernel's own line, not that of a verb.
    pub line: SourceLine,
    /// Its share, at most 1.
    pub share: f64,
}

impl Observation {
    /// The line that uses most of a resource in the middle block of the main step. `None` if no
    /// line uses it.
    pub fn hottest(&self, resource: Resource, profile: &Profile) -> Option<LineShare> {
        let step = self.steps.first()?;
        let samples = &step.seen.samples;
        let mut runs = samples.get(samples.len() / 2)?.runs.iter();
        let sm = Sm::of(profile, None);
        let mut by_line: Vec<(SourceLine, f64)> = Vec::new();
        step.kernel.for_each_node(&mut |node| {
            let Some(ran) = runs.next().filter(|ran| ran.runs > 0.0) else {
                return;
            };
            let Node::Inst { inst, site } = node else { return };
            let clocks = ran.runs * sm.clocks(&Work::of(inst, ran.transactions / ran.runs), resource);
            let line = step.kernel.kernel_line(*site);
            match by_line.iter_mut().find(|(seen, _)| *seen == line) {
                Some((_, sum)) => *sum += clocks,
                None => by_line.push((line, clocks)),
            }
        });
        let all: f64 = by_line.iter().map(|(_, clocks)| clocks).sum();
        let (line, most) = by_line.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
        (most > 0.0).then(|| LineShare {
            line,
            share: most / all,
        })
    }

    /// Cost of the memory accesses of each line in one block of the main step.
    pub fn memory(&self) -> &[MemorySite] {
        self.steps.first().map_or(&[], |step| &step.seen.memory)
    }
}

#[cfg(test)]
mod tests {
    use flashcore_ir::Target;
    use flashcore_kernels::Plan;
    use flashcore_problem::Problem;

    use super::*;

    fn observed(id: &str) -> Observation {
        let problem = Problem::named("mission").unwrap();
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
        let products = linear.hottest(Resource::Tensor, l4).unwrap();
        assert!(products.line.file.contains("mma") && products.share > 0.3);
    }
}
