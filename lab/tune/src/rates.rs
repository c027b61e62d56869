//! What a search does first on a GPU that was never measured: a worker measures what it gives, so that predictions rest on
//! more than the card's profile.

use flashcore_bench::DeviceIdentity;
use flashcore_bench::micro::rates;
use flashcore_ir::Profile;

use crate::setup::gpu;
use crate::worker::protocol::Command;
use crate::worker::{Deadlines, Program, Worker};

/// The name of a GPU that has a profile and no rates that hold, so that measuring it pays; `None` of any other device.
pub fn unmeasured(device: &str) -> Option<String> {
    device.strip_prefix("cuda:")?;
    let info = gpu(device).ok()?;
    // Without a profile nothing predicts, and without a place for them rates cannot be kept.
    Profile::of_device(&info.name, info.multiprocessors)?;
    let identity = DeviceIdentity::cuda(&info);
    rates::path(&identity)?;
    match rates::kept(&identity) {
        Ok(Some(_)) => None,
        Ok(None) | Err(_) => Some(info.name),
    }
}

/// Has a worker measure what a GPU gives and keep it for the device. Whatever goes wrong there costs predictions only.
///
/// # Errors
/// Why it was not measured, in a sentence.
pub fn measure(program: &Program, device: &str) -> Result<(), String> {
    let mut worker = Worker::new(program.clone(), device, Deadlines::default());
    match worker.ask(&Command::Rates) {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(loss)) => Err(loss.verdict().1),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::worker::fake::Fake;

    #[test]
    fn the_host_and_replays_are_not_measured() {
        assert_eq!(unmeasured("cpu"), None);
        assert_eq!(unmeasured("replay:shipped"), None);
        assert_eq!(unmeasured("cuda:99"), None);
    }

    #[test]
    fn what_goes_wrong_while_measuring_is_said() {
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
