use super::*;
use crate::profile::{Goals, insights};

/// What `ncu --csv --metrics ...` prints of a kernel on an L4: a row for each metric, with the names that the reports
/// used. The second kernel is a tiled one without tensor cores; a rule has no metric.
const DETAILS: &str = include_str!("../../tests/data/ncu-details.csv");

#[test]
fn a_row_for_each_metric_reads_as_launches() {
    let page = page(DETAILS).unwrap();
    let [first, second] = &page.launches[..] else {
        panic!("{page:#?}")
    };
    assert_eq!(first.kernel, "flash_fwd(const __half *, const __half *, int)");
    assert_eq!(
        (first.grid.as_str(), first.block.as_str()),
        ("(8, 8, 1)", "(128, 1, 1)")
    );
    for (key, value) in [
        ("dram", 12.5),
        ("tensor", 8.75),
        ("sm_busy", 31.2),
        ("occupancy", 16.6),
        ("time_ns", 279_000.0),
        ("wavefronts", 300_000.0),
        ("bank_conflicts", 90_000.0),
        ("registers", 168.0),
        ("shared_bytes", 49_152.0),
    ] {
        assert_eq!(first.get(key), Some(value), "{key}: {:?}", first.counters);
    }
    assert_eq!(second.get("tensor"), Some(0.0));
    assert_eq!(
        page.ignored,
        [
            "launch__occupancy_limit_registers",
            "sm__sass_average_branch_targets_threads_uniform.pct (no number)"
        ]
    );
}

#[test]
fn labels_of_the_details_page_are_known_by_their_units() {
    let head = "\"ID\",\"Kernel Name\",\"Block Size\",\"Grid Size\",\"Section Name\",\"Metric Name\",\"Metric Unit\",\"Metric \
                Value\",\"Rule Name\",\"Rule Description\"\n";
    let row = |name: &str, unit: &str, value: &str| {
        format!("\"0\",\"k\",\"(1, 1, 1)\",\"(1, 1, 1)\",\"S\",\"{name}\",\"{unit}\",\"{value}\",\"\",\"\"\n")
    };
    let rule =
        "\"0\",\"k\",\"(1, 1, 1)\",\"(1, 1, 1)\",\"S\",\"\",\"\",\"\",\"Bound\",\"It is \"\"bound\"\"\nby latency.\"\n";
    let rows = [
        row("DRAM Throughput", "%", "7.5"),
        row("Memory Throughput", "Gbyte/second", "20"),
        rule.to_string(),
        row("Duration", "usecond", "1,234.5"),
        row("Dynamic Shared Memory Per Block", "Kbyte/block", "2"),
    ];
    let page = page(&(head.to_string() + &rows.concat())).unwrap();
    let launch = &page.launches[0];
    assert_eq!(
        (launch.get("dram"), launch.get("time_ns")),
        (Some(7.5), Some(1_234_500.0))
    );
    assert_eq!(launch.get("shared_bytes"), Some(2000.0));
    assert_eq!(page.ignored, ["Memory Throughput"]);
}

#[test]
fn synonyms_in_a_raw_page_are_read_and_the_best_wins() {
    let raw = |names: &[&str], values: &[&str]| {
        let quote = |texts: &[&str]| texts.iter().map(|text| format!(",\"{text}\"")).collect::<String>();
        let (names, units, values) = (quote(names), quote(&vec!["%"; values.len()]), quote(values));
        format!("\"ID\",\"Kernel Name\"{names}\n\"\",\"\"{units}\n\"0\",\"k\"{values}\n")
    };
    let of = |name: &str| page(&raw(&[name], &["40"])).map(|page| page.launches[0].counters.clone());
    for (name, key) in [
        ("dram__throughput.avg.pct_of_peak_sustained_elapsed", "dram"),
        ("dram__throughput.max.pct_of_peak_sustained_active", "dram"),
        ("sm__pipe_tensor_active.avg.pct_of_peak_sustained_active", "tensor"),
        (
            "sm__inst_executed_pipe_tensor.sum.pct_of_peak_sustained_active",
            "tensor",
        ),
        (
            "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
            "tensor",
        ),
        ("smsp__warps_active.avg.pct_of_peak_sustained_active", "occupancy"),
        ("lts__t_sectors.avg.pct_of_peak_sustained_elapsed", "l2"),
    ] {
        let counters = of(name).unwrap();
        assert_eq!(
            counters.into_iter().collect::<Vec<_>>(),
            [(key.to_string(), 40.0)],
            "{name}"
        );
    }
    // The metric of our own names wins, wherever it stands.
    let own = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed";
    let both = ["dram__throughput.avg.pct_of_peak_sustained_elapsed", own];
    assert_eq!(
        page(&raw(&both, &["1", "2"])).unwrap().launches[0].get("dram"),
        Some(2.0)
    );
    let both = [both[1], both[0]];
    assert_eq!(
        page(&raw(&both, &["1", "2"])).unwrap().launches[0].get("dram"),
        Some(1.0)
    );
    // A rate is no share.
    let rate = of("dram__throughput.avg.per_second").unwrap_err();
    assert!(
        rate.contains("none of its metrics is known (dram__throughput.avg.per_second)"),
        "{rate}"
    );
    assert!(
        rate.contains("--metrics sm__throughput.avg.pct_of_peak_sustained_elapsed,"),
        "{rate}"
    );
    assert_eq!(
        page("\"ID\",\"Kernel Name\"\n\"\",\"\"\n").unwrap_err(),
        "its table has no launch"
    );
}

#[test]
fn a_table_without_quotes_is_read() {
    let text = "ID,Kernel Name,gpu__time_duration.sum\n,,us\n0,k,2.5\n";
    assert_eq!(read(text).unwrap()[0].get("time_ns"), Some(2500.0));
}

#[test]
fn insights_name_a_lever_and_what_it_saves_at_most() {
    let launches = read(DETAILS).unwrap();
    let of = |launch: &KernelProfile| insights(launch, &Goals::default());
    let first = of(&launches[0]);
    // 31.2 of a goal of 70; 90,000 of 300,000 wavefronts, of which nothing says how long they take.
    let saves: Vec<f64> = first.iter().map(|insight| insight.saves_at_most.round()).collect();
    assert_eq!(saves, [55.0, 30.0], "{first:#?}");
    assert!(first[0].lever.starts_with("hide latency") && first[1].lever.starts_with("swizzle"));
    assert!(
        first[0].evidence.contains("17 % of warps are active"),
        "{}",
        first[0].evidence
    );
    let second = of(&launches[1]);
    assert!(second[0].lever.contains("mma or wgmma"), "{second:#?}");
    assert_eq!(second[0].saves_at_most, 60.0);
    // Device memory that binds leaves nothing to other levers.
    let decode = KernelProfile {
        counters: [("dram", 86.0), ("sm_busy", 12.0)]
            .map(|(key, share)| (key.to_string(), share))
            .into(),
        stalls: [("long_scoreboard".to_string(), 90.0)].into(),
        ..KernelProfile::default()
    };
    let found = of(&decode);
    assert_eq!((found.len(), found[0].saves_at_most), (1, 14.0), "{found:#?}");
    // Latency: the wait is named.
    let waits = KernelProfile {
        counters: [("sm_busy".to_string(), 90.0)].into(),
        ..decode
    };
    assert!(of(&waits)[0].evidence.contains("wait for global memory"));
    assert!(of(&KernelProfile::default()).is_empty());
}

/// A quote that does not end takes the rest as its field, in time that grows with the text.
#[test]
fn a_quote_without_its_other_is_one_field() {
    let text = format!("\"ID\",\"Kernel Name\"\n\"0\",\"k{}", "\n".repeat(3_000_000));
    let error = read(&text).unwrap_err();
    assert!(
        error.contains("row 1") || error.contains("no metric") || error.contains("no launch"),
        "{error}"
    );
}
