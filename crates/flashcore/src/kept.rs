//! What plans are kept by, in a cache that many threads read at a time: one that is not there is made once, while
//! threads that need the same one wait for it and all others go on.

use flashcore_problem::AnyTask;
use flashcore_problem::task::sealed::Kind;
use quick_cache::Equivalent;

use crate::prepared::OwnedTask;

/// A task, and what its tensors are aligned to, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key(pub(crate) OwnedTask, pub(crate) u32);

/// The same of a task that is borrowed. It has the hash of its [`Key`].
#[derive(Hash)]
pub(crate) struct Wanted<'t>(pub(crate) AnyTask<'t>, pub(crate) u32);

impl Equivalent<Key> for Wanted<'_> {
    fn equivalent(&self, Key(task, alignment): &Key) -> bool {
        self.0 == task.kind() && self.1 == *alignment
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use flashcore_problem::{Combine, Problem, ProblemBuilder};
    use flashcore_testkit::random_append;
    use quick_cache::sync::Cache;

    use super::*;

    #[test]
    fn a_task_is_found_by_its_own_key_alone() {
        let problem = Problem::named("small").unwrap();
        let other = ProblemBuilder::from(&problem).softcap(20.0).build().unwrap(); // of the same hash
        let with_lse = ProblemBuilder::from(&problem).return_lse(true).build().unwrap();
        let appends = [random_append(1).append, random_append(2).append];
        let merges = [2, 3].map(|parts| Combine::of(&with_lse, parts).unwrap());
        let problems = [&problem, &other].map(AnyTask::Problem);
        let tasks = problems.into_iter().chain(appends.iter().map(AnyTask::Append));
        let tasks: Vec<_> = tasks.chain(merges.iter().map(AnyTask::Combine)).collect();
        let cache = Cache::new(100);
        for (number, task) in tasks.iter().enumerate() {
            for alignment in [4, 16] {
                assert_eq!(cache.get(&Wanted(*task, alignment)), None);
                cache.insert(Key((*task).into(), alignment), (number, alignment));
            }
        }
        for (number, task) in tasks.iter().enumerate() {
            assert_eq!(cache.get(&Wanted(*task, 16)), Some((number, 16)));
        }
    }

    #[test]
    fn errors_are_not_kept() {
        let kept = Cache::new(4);
        assert_eq!(kept.get_or_insert_with(&1, || Err("no")), Err::<i32, _>("no"));
        assert_eq!(kept.get_or_insert_with(&1, || Ok::<_, &str>(5)), Ok(5));
    }

    /// The maker of a new value waits until other threads have theirs: it would wait for good if they waited for it.
    #[test]
    fn a_new_value_stalls_only_those_that_need_it() {
        let kept = Cache::new(8);
        let fixed = |n: i32| kept.get_or_insert_with(&n, || Ok::<i32, ()>(n)).unwrap();
        fixed(1);
        let (begun, wait_for_begin) = channel();
        let (others_done, wait_for_others) = channel();
        thread::scope(|scope| {
            let kept = &kept;
            scope.spawn(move || {
                let make = || {
                    begun.send(()).unwrap();
                    wait_for_others.recv().unwrap();
                    Ok::<i32, ()>(20)
                };
                assert_eq!(kept.get_or_insert_with(&2, make), Ok(20));
            });
            wait_for_begin.recv().unwrap();
            // A value that is there, and one that is new.
            assert_eq!((fixed(1), fixed(3)), (1, 3));
            let same = scope.spawn(|| fixed(2)); // made by the other thread alone
            others_done.send(()).unwrap();
            assert_eq!(same.join().unwrap(), 20);
        });
    }
}
