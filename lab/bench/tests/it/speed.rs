//! The chart of speeds, and its numbers as CSV.

use flashcore_bench::chart::Speed;

const HEAD: &str = "# A card\nhead_dim,mask,seq_len,series,subject,tflops,low,high\n";

#[test]
fn names_of_lines_that_end_together_do_not_overlap() {
    let ends = ["FlashCore", "FA3", "cuDNN", "FA2"];
    let rows: String = ends
        .iter()
        .flat_map(|name| [512, 1024].map(|seq| format!("64,full,{seq},{name},x,100.0,99.0,101.0\n")))
        .collect();
    let numbers = format!("{HEAD}{rows}");
    let speed = Speed::of_csv(&numbers).unwrap();
    assert_eq!(speed.csv(), numbers);
    let svg = speed.chart().svg();
    // The four names end in the value at the last point.
    let mut heights: Vec<f64> = svg
        .split("<text")
        .filter(|text| text.contains(" 100</text>"))
        .map(|text| {
            text.split("y=\"")
                .nth(1)
                .unwrap()
                .split('"')
                .next()
                .unwrap()
                .parse()
                .unwrap()
        })
        .collect();
    heights.sort_by(f64::total_cmp);
    assert_eq!(heights.len(), 4, "{svg}");
    assert!(heights.windows(2).all(|pair| pair[1] - pair[0] >= 13.9), "{heights:?}");
    for never in ["<script", "url(", "NaN", "inf"] {
        assert!(!svg.contains(never), "{never}\n{svg}");
    }
}

#[test]
fn what_is_won_and_lost_is_counted() {
    let rows = "64,full,512,FlashCore,x,100.0,99.0,101.0\n64,full,512,FA3,fa3,90.0,89.0,91.0\n\
                64,full,1024,FlashCore,x,100.0,99.0,101.0\n64,full,1024,FA3,fa3,110.0,109.0,111.0\n\
                64,causal,512,FlashCore,x,100.0,99.0,101.0\n";
    let svg = Speed::of_csv(&format!("{HEAD}{rows}")).unwrap().chart().svg();
    // The third has no peer to be compared with.
    assert!(svg.contains("fastest on 1 of 2 problems"), "{svg}");
}

#[test]
fn numbers_that_cannot_be_drawn_are_refused_with_their_line() {
    for (rows, said) in [
        ("", "line 1: there is no point to draw"),
        ("64,full,512,FlashCore,x,100.0\n", "line 3: eight fields are needed"),
        (
            "64,window,512,FA3,x,1.0,1.0,1.0\n",
            "line 3: mask is `window`; allowed: full, causal",
        ),
        (
            "64,full,512,FA4,x,1.0,1.0,1.0\n",
            "line 3: series is `FA4`; allowed: FlashCore, FA3, cuDNN, FA2",
        ),
        ("64,full,512,FA3,x,NaN,1.0,1.0\n", "line 3: `NaN` is no number above 0"),
        (
            "64,full,512,FA3,x,1.0,1.0,1.0\n64,full,512,FA3,x,1.0,1.0,1.0\n",
            "two of head_dim 64 and length 512",
        ),
    ] {
        let error = Speed::of_csv(&format!("{HEAD}{rows}")).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    let error = Speed::of_csv("a,b\n").unwrap_err().to_string();
    assert!(error.contains("line 1: the columns are head_dim,mask"), "{error}");
}
