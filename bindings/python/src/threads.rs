//! The threads of a call on the host: as many as PyTorch has, which a process that shares its cores limits.

use std::env::var_os;
use std::sync::{Arc, LazyLock, OnceLock};
use std::thread::available_parallelism;

use quick_cache::sync::Cache;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// Pools that are kept, by their threads: programs change the number rarely.
const MOST_POOLS: usize = 4;

/// Does `work` on so many threads; on rayon's, one for each core, where PyTorch has as many or does not say, or
/// `RAYON_NUM_THREADS` says. That is faster, for the calling thread is one of them.
pub(crate) fn on_threads<T: Send>(threads: Option<usize>, work: impl FnOnce() -> T + Send) -> T {
    static RAYONS: OnceLock<usize> = OnceLock::new();
    let rayons = *RAYONS.get_or_init(|| match var_os("RAYON_NUM_THREADS") {
        Some(_) => 0,
        None => available_parallelism().map_or(0, usize::from),
    });
    match threads.filter(|&threads| threads < rayons).and_then(pool_of) {
        Some(pool) => pool.install(work),
        None => work(),
    }
}

/// The pool of so many threads; `None` where the system has no room for one. Threads of a pool that is not kept end
/// with the calls that use it.
fn pool_of(threads: usize) -> Option<Arc<ThreadPool>> {
    static POOLS: LazyLock<Cache<usize, Arc<ThreadPool>>> = LazyLock::new(|| Cache::new(MOST_POOLS));
    let make = || {
        let named = ThreadPoolBuilder::new().thread_name(|number| format!("flashcore-{number}"));
        named.num_threads(threads).build().map(Arc::new)
    };
    POOLS.get_or_insert_with(&threads, make).ok()
}
