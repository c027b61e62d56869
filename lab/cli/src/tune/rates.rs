//! What `flashcore tune` does first on a GPU that was never measured: it has it measured.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use flashcore_bench::DeviceIdentity;
use flashcore_bench::micro::rates;
use flashcore_ir::Profile;

use crate::failure::Failure;
use crate::machine;
use crate::style;
use crate::tune::worker;

/// Longest that measuring may take; it takes some two seconds.
const DEADLINE: Duration = Duration::from_secs(60);

/// How long what a child said is waited for once it has ended.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Measures what a GPU gives where nobody has with this driver and these microbenchmarks, and keeps it for the device.
/// Another process does it: a search takes no device itself, and whatever goes wrong there costs predictions and no more.
pub(crate) fn measure_once(device: &str, is_said: bool) -> Result<(), Failure> {
    let Some(name) = unmeasured(device) else { return Ok(()) };
    let spinner = style::spinner(&format!("measuring {name}"));
    let started = Instant::now();
    let mut command = Command::new(worker::program()?.path);
    command.args(["device", "--measure", "--json", "--device", device]);
    let measured = done_within(&mut command, DEADLINE);
    drop(spinner);
    let text = match measured {
        Ok(()) if !is_said => return Ok(()),
        Ok(()) => format!(
            "measured what {name} gives, {} s, kept for later searches: `flashcore device` shows it",
            style::digits3(started.elapsed().as_secs_f64())
        ),
        Err(why) => format!("note: what {name} gives could not be measured: {why}"),
    };
    style::eprint(&style::wrap(&text, 2));
    Ok(())
}

/// What a GPU is called that something models and that has no rates that hold.
fn unmeasured(device: &str) -> Option<String> {
    let ordinal = device.strip_prefix("cuda:")?;
    let gpus = machine::gpus().ok()?;
    let info = gpus.iter().find(|info| info.ordinal.to_string() == ordinal)?;
    // Without a profile nothing predicts, with no place for them rates cannot be kept.
    Profile::of_device(&info.name, info.multiprocessors)?;
    let identity = DeviceIdentity::cuda(info);
    rates::path(&identity)?;
    match rates::kept(&identity) {
        Ok(Some(_)) => None,
        Ok(None) | Err(_) => Some(info.name.clone()),
    }
}

/// Runs a command to its end; why it has no result, where it has none.
fn done_within(command: &mut Command, deadline: Duration) -> Result<(), String> {
    let started = Instant::now();
    let piped = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    let mut child = piped.spawn().map_err(|error| format!("it did not start: {error}"))?;
    // Read as it comes: a child that says more than a pipe holds waits until somebody does.
    let (sender, said) = channel();
    if let Some(mut stderr) = child.stderr.take() {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            // What came until it failed is better than nothing.
            let _ = stderr.read_to_end(&mut text);
            let _ = sender.send(text);
        });
    }
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if started.elapsed() < deadline => std::thread::sleep(Duration::from_millis(10)),
            ended => {
                // It may have ended just now: then there is nothing to end.
                let _ = child.kill();
                let _ = child.wait();
                return Err(match ended {
                    Err(error) => error.to_string(),
                    Ok(_) => format!("no answer in {} s", style::digits3(deadline.as_secs_f64())),
                });
            }
        }
    };
    if status.success() {
        return Ok(());
    }
    // All of it, unless a process that the child left behind has the pipe, too.
    let said = said.recv_timeout(LAST_WORDS).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    Err(format!("{status}: {said}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn what_ends_well_is_done() {
        assert_eq!(done_within(&mut shell("echo rates"), DEADLINE), Ok(()));
    }

    #[test]
    fn what_fails_says_why() {
        let why = done_within(&mut shell("echo no such kernel >&2; exit 3"), DEADLINE).unwrap_err();
        assert!(why.contains('3') && why.ends_with("no such kernel"), "{why}");
        let why = done_within(&mut Command::new("/nowhere/flashcore"), DEADLINE).unwrap_err();
        assert!(why.contains("did not start"), "{why}");
    }

    #[test]
    fn what_says_much_does_not_hang() {
        // More than any pipe holds.
        let much = "i=0; while [ $i -lt 3000 ]; do echo 'a line of a hundred characters and more, so that three thousand of \
                    them are far more than what a pipe holds' >&2; i=$((i + 1)); done;";
        assert_eq!(done_within(&mut shell(&format!("{much} exit 0")), DEADLINE), Ok(()));
        let why = done_within(&mut shell(&format!("{much} echo last >&2; exit 3")), DEADLINE).unwrap_err();
        assert!(why.ends_with("last") && why.len() > 200_000, "{}", why.len());
    }

    #[test]
    fn what_hangs_is_ended() {
        let why = done_within(&mut shell("exec sleep 600"), Duration::from_millis(50)).unwrap_err();
        assert!(why.contains("no answer"), "{why}");
    }

    #[test]
    fn the_host_and_replays_are_not_measured() {
        assert_eq!(unmeasured("cpu"), None);
        assert_eq!(unmeasured("replay:shipped"), None);
        assert_eq!(unmeasured("cuda:99"), None);
    }
}
