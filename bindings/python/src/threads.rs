//! The threads of a call on the host: as many as PyTorch has, which a process that shares its cores limits.

use std::env::var_os;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::available_parallelism;

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

/// The pool of so many threads; `None` where the system has no room for one.
fn pool_of(threads: usize) -> Option<Arc<ThreadPool>> {
    static POOLS: Mutex<Vec<Arc<ThreadPool>>> = Mutex::new(Vec::new());
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(pool) = pools.iter().find(|pool| pool.current_num_threads() == threads) {
        return Some(pool.clone());
    }
    let named = ThreadPoolBuilder::new().thread_name(|number| format!("flashcore-{number}"));
    let pool = Arc::new(named.num_threads(threads).build().ok()?);
    if pools.len() >= MOST_POOLS {
        pools.remove(0); // its threads end with the calls that use it
    }
    pools.push(pool.clone());
    Some(pool)
}
