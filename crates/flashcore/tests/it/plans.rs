//! Plan tables: which row serves which problem, which table is asked first, and what is said of
//! what cannot be used.

use std::path::PathBuf;

use flashcore::unstable::plans::{
    NamedTable, PlanClass, PlanDevice, PlanError, PlanRow, PlanSetting, PlanTable, PlanTarget, Plans, read_table,
    shipped_tables,
};
use flashcore::unstable::testing::{Inputs, Tolerance, compare, reference};
use flashcore::{Attention, Device, Error, KernelId, Mask, Problem, Tensor};
use flashcore_ir::{Profile, Target};
use flashcore_kernels::{KernelCache, Plan, select, select_among};
use tempfile::TempDir;

pub(crate) const H200: &str = r#"{"name":"NVIDIA H200","target":"sm_90a","units":132}"#;

pub(crate) fn h200() -> PlanDevice {
    serde_json::from_str(H200).unwrap()
}

pub(crate) fn row(problem: &Problem, kernel: &str) -> PlanRow {
    PlanRow {
        problem: PlanClass::of(problem).unwrap(),
        kernel: kernel.parse().unwrap(),
        against: "mma/m128n64-w4x1-s2-b1-qreg-xor-spec".to_string(),
        gain: 0.034,
        interval: [0.03, 0.038],
        revision: "1a2b3c4d5e6f".to_string(),
        driver: "580.65.06/13000".to_string(),
        date: "2026-11-21".to_string(),
    }
}

pub(crate) fn named(name: &str, device: PlanDevice, rows: &[PlanRow]) -> NamedTable {
    let mut table = PlanTable::new(device);
    rows.iter().for_each(|row| table.put(row.clone()));
    NamedTable {
        name: name.to_string(),
        table,
    }
}

/// A folder of tables that is gone when the test ends.
struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn with(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn find(&self, setting: &PlanSetting, device: &PlanDevice) -> Result<Plans, PlanError> {
        Plans::find(setting, Some(self.0.path()), &PlanTarget::Device(device.clone()))
    }

    /// What was said, without the folder's own name.
    fn told(&self, error: &impl ToString) -> String {
        error.to_string().replace(&format!("{}/", self.0.path().display()), "")
    }
}

pub(crate) const TILE: &str = "mma/m64n64-w4x1-s2-b1-qreg-xor-cond";
pub(crate) const OTHER: &str = "mma/m64n128-w4x1-s2-b1-qreg-xor-cond";

#[test]
fn a_row_serves_its_own_problems_and_slightly_shorter_ones() {
    let base = || Problem::builder().batch(2).heads(8, 4).seq_len(1000).head_dim(64);
    let plans = Plans::of_tables(vec![named("mine", h200(), &[row(&base().build().unwrap(), TILE)])]);
    let found = |problem: Result<Problem, _>| !plans.rows(&problem.unwrap()).is_empty();
    assert!(found(base().build()));
    assert!(found(base().seq_len(961).build()));
    // What does not change how long it takes.
    assert!(found(base().softmax_scale(0.3).build()));
    assert!(found(base().mask(Mask::FULL.top_left()).build()));
    for (what, other) in [
        ("shorter by a tile", base().seq_len(960)),
        ("longer", base().seq_len(1001)),
        ("fewer keys", base().seq_len_kv(512)),
        ("batch", base().batch(3)),
        ("heads", base().heads(8, 8)),
        ("columns", base().head_dim(72)),
        ("columns of V", base().head_dim_v(32)),
        ("dtype", base().dtype(flashcore::DType::BF16)),
        ("mask", base().mask(Mask::CAUSAL)),
        ("window", base().mask(Mask::window(Some(64), None))),
        ("cap", base().softcap(30.0)),
        ("sinks", base().sinks(flashcore::DType::F32)),
        ("alibi", base().alibi(flashcore::Alibi::Heads)),
        ("log-sum-exp", base().return_lse(true)),
        ("offset", base().offsets(1, 0)),
        ("layout", base().layout(flashcore::Layout::bhsd)),
    ] {
        assert!(!found(other.build()), "{what}");
    }
}

#[test]
fn the_nearest_of_two_rows_is_taken() {
    let problem = |length| {
        Problem::builder()
            .heads(1, 1)
            .head_dim(64)
            .seq_len(length)
            .build()
            .unwrap()
    };
    let rows = [row(&problem(2048), TILE), row(&problem(2040), OTHER)];
    let plans = Plans::of_tables(vec![named("mine", h200(), &rows)]);
    let kernel = |length| plans.rows(&problem(length))[0].row.kernel.to_string();
    assert_eq!(
        [kernel(2048), kernel(2041), kernel(2040), kernel(2000)],
        [TILE, TILE, OTHER, OTHER]
    );
}

#[test]
fn rows_that_are_refused_are_passed_over_and_the_next_table_is_asked() {
    let problem = Problem::named("small").unwrap();
    let hopper = row(&problem, "wgmma/m192n256-s4-pingpong-spec");
    let (first, second) = (
        named("a.json", h200(), &[hopper]),
        named("b.json", h200(), &[row(&problem, TILE)]),
    );
    let plans = Plans::of_tables(vec![first.clone(), second]);
    let kernels = KernelCache::default();
    let choose = |plans: &Plans| select_among(&problem, Target::Sm90a, 16, &plans.suggestions(&problem), &kernels);
    let choice = choose(&plans).unwrap();
    assert_eq!(
        (choice.plan.config.to_string().as_str(), choice.suggestion),
        (TILE, Some(1))
    );
    let refused = &choice.considered[0];
    assert!(refused.suggestion == Some(0) && refused.refusal.is_some());
    insta::assert_snapshot!(choice.why, @"row 1 of b.json: 3.4 % [3.0, 3.8] less time than mma/m128n64-w4x1-s2-b1-qreg-xor-spec on 2026-11-21 (revision 1a2b3c4d5e6f, driver 580.65.06/13000)");
    // With nothing else to ask it is as if there were no table.
    let choice = choose(&Plans::of_tables(vec![first])).unwrap();
    let default = select(&problem, Target::Sm90a, 16, &kernels).unwrap();
    assert_eq!((choice.plan.config, choice.suggestion), (default.plan.config, None));
    assert!(choice.considered[0].refusal.is_some());
}

#[test]
fn the_users_tables_come_before_the_shipped_one_and_settings_pin() {
    let folder = Folder::new();
    let problem = Problem::named("small").unwrap();
    let table = named("", h200(), &[row(&problem, TILE)]).table;
    let mine = folder.with("mine.json", &table.to_json().unwrap());
    let ours = shipped_tables().unwrap()[0].name.clone();
    let names = |setting: &PlanSetting, device: &PlanDevice| -> Vec<String> {
        let plans = folder.find(setting, device).unwrap();
        assert_eq!(plans.notes(), []);
        plans.tables().iter().map(|table| table.name.clone()).collect()
    };
    let mine = mine.display().to_string();
    assert_eq!(names(&PlanSetting::Usual, &h200()), [&*mine, &*ours]);
    assert_eq!(names(&PlanSetting::User, &h200()), [&*mine]);
    assert_eq!(names(&PlanSetting::Shipped, &h200()), [&*ours]);
    assert!(names(&PlanSetting::Heuristics, &h200()).is_empty());
    assert_eq!(names(&PlanSetting::File(mine.clone().into()), &h200()), [&*mine]);
    // Another card, or a slice of this one, has nothing to do with either.
    for device in [
        PlanDevice { units: 66, ..h200() },
        PlanDevice {
            name: "NVIDIA H100 80GB HBM3".to_string(),
            ..h200()
        },
    ] {
        assert!(names(&PlanSetting::Usual, &device).is_empty());
        let error = folder
            .find(&PlanSetting::File(mine.clone().into()), &device)
            .unwrap_err();
        assert!(matches!(error, PlanError::Device { .. }), "{error}");
    }
    // A card that is not there, as `explain --profile h200` has it.
    let card = PlanTarget::Card(Profile::named("h200").unwrap());
    let plans = Plans::find(&PlanSetting::Usual, Some(folder.0.path()), &card).unwrap();
    assert_eq!(plans.tables().len(), 2);
    // Without a folder there are no tables of the user's, and none can be asked for.
    let target = PlanTarget::Device(h200());
    assert_eq!(
        Plans::find(&PlanSetting::Usual, None, &target).unwrap().tables().len(),
        1
    );
    assert_eq!(Plans::find(&PlanSetting::User, None, &target), Err(PlanError::NoFolder));
}

/// What is wrong with files, as a note where they lie in the user's folder and as an error where
/// they are named.
#[test]
fn files_that_cannot_be_used_are_told_of_and_spoil_nothing() {
    let folder = Folder::new();
    let problem = Problem::named("small").unwrap();
    let good = serde_json::to_string(&row(&problem, TILE)).unwrap();
    let rows = |rows: &[&str]| format!(r#"{{"format": 1, "device": {H200}, "rows": [{}]}}"#, rows.join(",\n"));
    let files = [
        ("a-cut-off.json", r#"{"format": 1, "device": {"name""#.to_string()),
        ("b-other.json", r#"{"problems": []}"#.to_string()),
        ("c-newer.json", format!(r#"{{"format": 2, "tables": [{H200}]}}"#)),
        (
            "d-misspelt.json",
            format!(r#"{{"format": 1, "device": {H200}, "row": []}}"#),
        ),
        (
            "e-unknown-id.json",
            rows(&[&good.replace(TILE, "mma/m64n64-of-old"), &good]),
        ),
        ("f-cpu.json", rows(&[&good.replace(TILE, "cpu/m64n64")])),
        ("g-mask.json", rows(&[&good.replace("full", "casual")])),
        ("h-twice.json", rows(&[&good, &good.replace(TILE, OTHER)])),
        ("i-no-dtype.json", rows(&[&good.replace("fp16", "int8")])),
    ];
    for (name, text) in &files {
        folder.with(name, text);
    }
    std::fs::create_dir(folder.0.path().join("j-folder.json")).unwrap();
    folder.with("notes.txt", "not looked at");
    let plans = folder.find(&PlanSetting::User, &h200()).unwrap();
    let told: Vec<String> = plans.notes().iter().map(|note| folder.told(note)).collect();
    insta::assert_snapshot!(told.join("\n"));
    // The good rows of those files count all the same.
    assert_eq!(plans.rows(&problem).len(), 2);
    for (name, _) in &files {
        let error = folder
            .find(&PlanSetting::File(folder.0.path().join(name)), &h200())
            .unwrap_err();
        assert!(told.contains(&folder.told(&error)), "{error}");
    }
    let missing = folder.find(&PlanSetting::File("shiped".into()), &h200()).unwrap_err();
    insta::assert_snapshot!(missing, @"the plan table shiped cannot be read: No such file or directory (os error 2); FLASHCORE_PLANS is shipped, user, none, or a file");
    let elsewhere = PlanDevice { units: 66, ..h200() };
    let table = folder.with("z.json", &rows(&[&good]));
    let error = folder.find(&PlanSetting::File(table), &elsewhere).unwrap_err();
    insta::assert_snapshot!(folder.told(&error), @"the plan table z.json was measured on NVIDIA H200 (sm_90a, 132 SMs), and this is NVIDIA H200 (sm_90a, 66 SMs); name a table of this device, or unset FLASHCORE_PLANS");
}

#[test]
fn tables_are_sorted_text_that_reads_back() {
    let problem = |length| {
        Problem::builder()
            .heads(1, 1)
            .head_dim(64)
            .seq_len(length)
            .mask(Mask::window(Some(8), Some(0)))
            .build()
            .unwrap()
    };
    let rows = [row(&problem(512), TILE), row(&problem(64), OTHER)];
    let mut table = named("", h200(), &rows).table;
    // A row for the same problems takes the place of the one before.
    table.put(row(&problem(512), OTHER));
    let text = table.to_json().unwrap();
    insta::assert_snapshot!(text);
    assert_eq!(PlanTable::parse(&text, "x").unwrap().to_json().unwrap(), text);
    // Rows that this build does not understand are kept as they are, at the end.
    let unknown = text.replacen(OTHER, "mma/of-old", 1);
    let mut read = PlanTable::parse(&unknown, "x").unwrap();
    read.put(row(&problem(2), TILE));
    assert_eq!(read.rows().count(), 2);
    assert!(read.to_json().unwrap().contains("mma/of-old"));
    // Until their own problem is measured anew.
    read.put(row(&problem(64), TILE));
    assert_eq!((read.rows().count(), read.entries.len()), (3, 3));
}

#[test]
fn the_host_asks_its_table_and_answers_the_same() {
    let problem = Problem::builder()
        .head_dim(64)
        .heads(4, 4)
        .seq_len(100)
        .build()
        .unwrap();
    let attention = |units: u32| {
        let device = PlanDevice {
            units,
            ..PlanDevice::of(&Device::cpu())
        };
        let table = named("host.json", device, &[row(&problem, "cpu/m48n36")]);
        Attention::with(Device::cpu(), Plans::of_tables(vec![table])).unwrap()
    };
    let threads = PlanDevice::of(&Device::cpu()).units;
    let asked = attention(threads);
    let summary = asked.plan(&problem).unwrap();
    assert_eq!(
        (summary.kernel().to_string().as_str(), summary.row()),
        ("cpu/m48n36", Some(0))
    );
    assert!(
        summary.why().starts_with("row 1 of host.json: 3.4 %"),
        "{}",
        summary.why()
    );
    // Measured with other threads it says nothing; nor of another problem; nor where a kernel is
    // named.
    assert_eq!(attention(threads + 1).plan(&problem).unwrap().row(), None);
    let longer = Problem::builder()
        .head_dim(64)
        .heads(4, 4)
        .seq_len(300)
        .build()
        .unwrap();
    assert_eq!(asked.plan(&longer).unwrap().row(), None);
    let kernel: KernelId = "cpu/m64n64".parse().unwrap();
    let fixed = Attention::with(Device::cpu(), kernel).unwrap();
    assert_eq!(fixed.plan(&problem).unwrap().kernel(), kernel);

    let Inputs { q, k, v, .. } = Inputs::generate(&problem, flashcore::unstable::testing::InputKind::Normal, 3);
    let mut out = Tensor::poisoned(problem.out_dtype(), *problem.o_layout());
    let operands = flashcore::Operands::forward(&q, &k, &v, &mut out);
    asked.run(&problem, operands).unwrap();
    let want = reference(&problem, &q.view(), &k.view(), &v.view()).unwrap();
    assert!(
        compare(&problem, &out.view(), &want, Tolerance::of(problem.dtype()))
            .unwrap()
            .passed
    );
}

#[test]
fn an_error_of_a_table_is_one_of_the_library() {
    let error = Error::from(PlanError::NoFolder);
    assert!(!error.is_environment() && error.to_string().contains("XDG_DATA_HOME"));
}

/// Each row of the tables that are shipped can be planned for its own problem, says something that
/// heuristics do not, and was measured against what they choose today: its gain is one over that.
#[test]
fn shipped_tables_can_be_used_row_by_row() {
    let kernels = KernelCache::default();
    for NamedTable { name, table } in shipped_tables().unwrap() {
        let again = PlanTable::parse(&table.to_json().unwrap(), &name).unwrap();
        assert_eq!(again.to_json().unwrap(), table.to_json().unwrap());
        assert_eq!(
            table.rows().count(),
            table.entries.len(),
            "{name}: rows that cannot be used"
        );
        let target = Target::from_name(&table.device.target).unwrap();
        for (number, row) in table.rows() {
            let of = &row.problem;
            let problem = Problem::builder()
                .batch(of.batch)
                .heads(of.heads, of.kv_heads)
                .seq_len_q(of.seq_q)
                .seq_len_kv(of.seq_kv)
                .head_dim(of.head_dim)
                .head_dim_v(of.head_dim_v)
                .dtype(of.dtype)
                .mask(of.mask)
                .direction(of.direction)
                .deterministic(of.deterministic)
                .build()
                .unwrap();
            assert_eq!(PlanClass::of(&problem).as_ref(), Some(of));
            let KernelId::Gpu(config) = row.kernel else {
                panic!("{name}, row {number}")
            };
            let plan = Plan::with_cache(&problem, &config, target, &kernels);
            assert!(plan.is_ok(), "{name}, row {number}: {:?}", plan.err());
            let default = select(&problem, target, 16, &kernels).unwrap().plan.config;
            assert_ne!(default, config, "{name}, row {number} says what heuristics say");
            let today = default.to_string();
            assert_eq!(
                row.against, today,
                "{name}, row {number}: its gain is over another kernel"
            );
            assert!(row.gain >= 0.01 && row.interval[0] > 0.0, "{name}, row {number}");
        }
    }
}

/// A FIFO without a writer would block the library for ever, and a device fill the memory.
#[cfg(unix)]
#[test]
fn a_pipe_or_a_device_is_no_table() {
    let folder = tempfile::tempdir().unwrap();
    let [pipe, device] = ["pipe.json", "device.json"].map(|name| folder.path().join(name));
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    std::os::unix::fs::symlink("/dev/zero", &device).unwrap();
    for (file, why) in [(pipe, "it is a pipe (FIFO)"), (device, "it is a device")] {
        let error = read_table(&file).unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}
