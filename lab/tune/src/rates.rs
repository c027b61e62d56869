//! Measures the rates of a GPU before its first search, so that predictions do not depend on the
//! card's profile alone.

use flashcore_bench::DeviceIdentity;
use flashcore_bench::micro::rates;
use flashcore_ir::Profile;

use crate::setup::gpu;
use crate::worker::protocol::Command;
use crate::worker::{Deadlines, Program, Stop, Worker};

/// The name of a GPU that has a profile and no valid rates, so that measuring it pays.
pub fn unmeasured(device: &str) -> Option<String> {
    device.strip_prefix("cuda:")?;
    let info = gpu(device).ok()?;
    // Without a profile nothing predicts, and without a folder rates cannot be stored.
    Profile::of_device(&info.name, info.multiprocessors)?;
    let identity = DeviceIdentity::cuda(&info);
    rates::path(&identity)?;
    match rates::kept(&identity) {
        Ok(Some(_)) => None,
        Ok(None) | Err(_) => Some(info.name),
    }
}

/// Has a worker measure a GPU's rates and store them, or says why it did not, which costs only
/// predictions.
pub fn measure(program: &Program, device: &str) -> Result<(), String> {
    let mut worker = Worker::new(program.clone(), device, Deadlines::default());
    worker.ask(&Command::Rates).map_err(Stop::reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_and_replays_are_not_measured() {
        assert_eq!(unmeasured("cpu"), None);
        assert_eq!(unmeasured("replay:shipped"), None);
        assert_eq!(unmeasured("cuda:99"), None);
    }

    #[cfg(unix)]
    #[test]
    fn errors_while_measuring_are_reported() {
        use crate::tests::fake::Fake;
        let measured = |name: &str, first: &str| {
            let fake = Fake {
                first: first.to_string(),
                ..Fake::new()
            };
            measure(&fake.program(name), "cpu")
        };
        assert_eq!(measured("rates-done", ""), Ok(()));
        let dies = measured("rates-dies", "*'\"rates\"'*) echo no such kernel >&2; exit 3;;").unwrap_err();
        assert!(dies.contains("no such kernel"), "{dies}");
        let failed = r#"said='"failed":{"verdict":"REFUSED","kernel":null,"reason":"a wrong sum","fatal":false}'"#;
        let wrong = measured("rates-wrong", &format!("*'\"rates\"'*) {failed};;"));
        assert_eq!(wrong, Err("a wrong sum".to_string()));
    }
}
