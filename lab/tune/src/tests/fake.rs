//! A worker with prepared answers. It is a shell script, so that hanging, dying and lying take one
//! line each.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use flashcore_bench::{
    DeviceIdentity, Interval, LaunchMode, Measured, Measurement, Mode, Ratio, Stop, SubjectInfo, Summary, Verdict,
    executable, revision,
};

use crate::worker::Program;
use crate::worker::protocol::{Hello, Opened, PROTOCOL, Said};

/// What a fake worker does.
pub(crate) struct Fake {
    pub(crate) device: DeviceIdentity,
    /// Lines of a shell's `case` on the whole command, before the usual answers. They set `said`,
    /// or exit.
    pub(crate) first: String,
}

impl Fake {
    pub(crate) fn new() -> Fake {
        Fake {
            device: DeviceIdentity::cpu(),
            first: String::new(),
        }
    }

    /// The script, in a file of this name.
    pub(crate) fn program(&self, name: &str) -> Program {
        let path = file(name);
        let opened = |count: usize| Said::ok(vec![Opened::new("", None, None); count]);
        let script = format!(
            "open=1\nwhile read -r line; do\nid=${{line#*:}}; id=${{id%%,*}}\n\
             case $line in *'\"kernels\":['*'\",\"'*) open=2;; *'\"kernels\":['*) open=1;; esac\n\
             case $line$open in\n{}\n\
             *'\"hello\"'*) said='{}';;\n\
             *'\"open\"'*1) said='{}';;\n*'\"open\"'*2) said='{}';;\n\
             *'\"time\"'*1) said='{}';;\n*'\"time\"'*2) said='{}';;\n\
             *) said='{}';;\nesac\nprintf '%s\\n' \"{{\\\"id\\\":$id,$said}}\"\ndone\n",
            self.first,
            hello_of(&self.device),
            quoted(&opened(1)),
            quoted(&opened(2)),
            quoted(&Said::ok(measured(1, 0.5))),
            quoted(&Said::ok(measured(2, 0.5))),
            quoted(&Said::ok(())),
        );
        std::fs::write(&path, script).unwrap();
        Program {
            path: "sh".into(),
            args: vec![path.into_os_string()],
            env: Vec::new(),
        }
    }
}

/// A member of an object, without the braces.
fn quoted(said: &Said) -> String {
    let text = serde_json::to_string(said).unwrap();
    text[1..text.len() - 1].to_string()
}

/// The answer to `hello` of a device that computes nothing, without the braces.
pub(crate) fn hello_of(device: &DeviceIdentity) -> String {
    quoted(&Said::ok(Hello {
        protocol: PROTOCOL,
        revision: revision().to_string(),
        executable: executable().to_string(),
        device: device.clone(),
        computes: false,
    }))
}

/// Another file at each call, since tests run at once and may use the same name.
fn file(name: &str) -> PathBuf {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("flashcore-fake-{name}-{}-{call}.sh", std::process::id()))
}

/// The answer to `time` for a kernel that takes `ratio` times as long as the best, without the
/// braces.
pub(crate) fn measured_at(ratio: f64) -> String {
    quoted(&Said::ok(measured(2, ratio)))
}

/// The answer to `time` for finalists with their ratios to the first of them, without the braces.
pub(crate) fn met(finalists: &[(&str, f64)]) -> String {
    let mut measurement = measured(1, 0.5);
    let one = measurement.subjects.remove(0);
    measurement.subjects = finalists
        .iter()
        .enumerate()
        .map(|(index, (id, value))| Measured {
            info: SubjectInfo::new((*id).to_string(), LaunchMode::Host),
            summary: one.summary.map(|summary| Summary {
                p50: 10.0 * value,
                ..summary
            }),
            ratio: (index > 0).then_some(ratio(*value)),
            ..one.clone()
        })
        .collect();
    (measurement.mode, measurement.baseline) = (Mode::Hot, 0);
    quoted(&Said::ok(measurement))
}

fn ratio(value: f64) -> Ratio {
    Ratio {
        value,
        interval: Interval {
            lo: value - 0.01,
            hi: value + 0.01,
        },
        of_medians: value,
        rounds: 9,
    }
}

/// One kernel of 10 µs, or one and another of 20 µs with this ratio.
fn measured(subjects: usize, value: f64) -> Measurement {
    let interval = Interval { lo: 9.9, hi: 10.1 };
    let subject = |index: usize| {
        let us = 10.0 * (index + 1) as f64;
        let ratio = (subjects == 2 && index == 0).then_some(ratio(value));
        Measured {
            info: SubjectInfo::new(format!("kernel-{index}"), LaunchMode::Host),
            summary: Some(Summary {
                count: 9,
                min: us,
                p10: us,
                p50: us,
                p90: us,
                max: us,
                mad: 0.1,
                interval,
            }),
            ratio,
            verdict: ratio.map(|ratio| Verdict::of(&ratio, 0.03)),
            settled: true,
            trouble: None,
        }
    };
    Measurement {
        mode: Mode::Screen,
        turns: None,
        baseline: subjects - 1,
        subjects: (0..subjects).map(subject).collect(),
        stop: Stop::Rounds,
        rounds: 9,
        readings: Vec::new(),
    }
}
