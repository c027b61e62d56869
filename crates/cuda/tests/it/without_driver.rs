//! Without a driver, every entry point returns an error and nothing panics. With one, these tests
//! are skipped.

use flashcore_cuda::{Context, CudaError, devices};

fn driver_is_here() -> bool {
    let here = !matches!(devices(), Err(CudaError::NoDriver { .. }));
    if here {
        eprintln!("a CUDA driver is installed: skipped");
    }
    here
}

#[test]
fn discovery_names_what_was_looked_for_and_what_to_install() {
    if driver_is_here() {
        return;
    }
    let error = devices().unwrap_err();
    assert!(error.is_environment());
    let text = error.to_string();
    for part in ["no NVIDIA driver", "libcuda", "525", "--gpus all"] {
        assert!(text.contains(part) || cfg!(windows), "{part} is missing from: {text}");
    }
    // Asked again, and from other threads, it says the same.
    let again = std::thread::spawn(|| devices().unwrap_err().to_string())
        .join()
        .unwrap();
    assert_eq!(again, text);
}

#[test]
fn a_context_cannot_be_made() {
    if driver_is_here() {
        return;
    }
    assert!(matches!(Context::new(0), Err(CudaError::NoDriver { .. })));
    assert!(matches!(Context::new(u32::MAX), Err(CudaError::NoDriver { .. })));
}
