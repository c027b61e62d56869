//! What the family refuses, and whether what it names helps.

use flashcore_problem::{KvLengths, Layout};

use super::config::SLACK_BYTES;
use super::*;
use crate::KernelCache;

#[test]
fn a_product_that_the_compiler_has_no_registers_for_is_refused() {
    let outcome = |id: &str, head_dim_v| {
        let problem = Problem::builder()
            .heads(4, 4)
            .seq_len(256)
            .head_dim(64)
            .head_dim_v(head_dim_v);
        let config = Config::from(FAMILY.read_levers(id).unwrap());
        let (chip, kernels, tap) = (Target::Sm90a.into(), &KernelCache::default(), None);
        plan(&problem.build().unwrap(), &config, Resolver { chip, kernels, tap }).map(drop)
    };
    // Both sides of what ptxas takes.
    assert_eq!(outcome("m192n32-s2-free-cond", 192), Ok(()));
    let refused = outcome("m192n32-s2-free-cond", 200).unwrap_err().to_string();
    assert!(refused.starts_with("at least 134 registers a thread"), "{refused}");
    assert!(refused.contains("at most 128"), "{refused}");
    assert_eq!(outcome("m128n32-s2-free-cond", 256), Ok(()));
}

/// Each refusal with a remedy that serves: the texts, for review.
#[test]
fn remedies() {
    use crate::Plan;
    let e4m3 = Problem::builder()
        .seq_len(128)
        .heads(4, 2)
        .head_dim(64)
        .dtype(DType::E4M3);
    let wide = Problem::builder().seq_len(128).heads(4, 2).head_dim(256);
    let rows = |repeated| {
        let shape = [1, 128, 2, 64];
        let (whole, once) = ([128 * 128, 128, 64, 1], [128 * 128, 128, 0, 1]);
        let [q, k, out] = [whole, if repeated { once } else { whole }, whole].map(|strides| Layout { shape, strides });
        Problem::builder()
            .heads(2, 2)
            .seq_len(128)
            .head_dim(64)
            .layouts(q, k, k, out)
    };
    let gathered = |batch, keys: usize| {
        let pages = KvLengths::Paged {
            page_size: 3,
            pages: 9,
            max_pages: keys.div_ceil(3),
        };
        let rows = e4m3.clone().batch(batch).seq_len_q(1).seq_len_kv(keys);
        rows.heads(8, 8).kv_lengths(pages)
    };
    let cases = [
        (
            "gathered keys of a sequence",
            gathered(1, 5 << 20),
            "m64n128-s2-free-spec",
            Target::Sm90a,
        ),
        (
            "gathered keys",
            gathered(200, 1 << 20),
            "m64n128-s2-free-spec",
            Target::Sm90a,
        ),
        ("not Hopper", wide.clone(), "m64n64-s2-free-spec", Target::Sm80),
        ("not Hopper, e4m3", e4m3.clone(), "m64n64-s2-free-spec", Target::Sm80),
        (
            "not Hopper, f32",
            wide.clone().dtype(DType::F32),
            "m64n64-s2-free-spec",
            Target::Sm80,
        ),
        (
            "crooked rows, e4m3",
            e4m3.clone().head_dim(72),
            "m64n64-s2-free-spec",
            Target::Sm90a,
        ),
        (
            "crooked values, e4m3",
            e4m3.clone().head_dim_v(72),
            "m64n64-s2-free-spec",
            Target::Sm90a,
        ),
        ("repeated rows", rows(true), "m64n64-s2-free-spec", Target::Sm90a),
        (
            "repeated rows, e4m3",
            rows(true).dtype(DType::E4M3),
            "m64n64-s2-free-spec",
            Target::Sm90a,
        ),
        (
            "too many",
            e4m3.clone().heads(1, 1).seq_len_q(1 << 23),
            "m64n64-s2-free-spec",
            Target::Sm90a,
        ),
        ("cols, e4m3", e4m3, "m64n80-s2-free-spec", Target::Sm90a),
        ("shared memory", wide.clone(), "m128n64-s4-pingpong-spec", Target::Sm90a),
        (
            "shared memory, three levers",
            wide.clone().head_dim(128),
            "m192n80-s4-pingpong-cond",
            Target::Sm90a,
        ),
        (
            "shared memory, no lever alone",
            wide.head_dim_v(64),
            "m192n128-s4-pingpong-spec",
            Target::Sm90a,
        ),
        ("registers", rows(false), "m64n256-s3-free-spec", Target::Sm90a),
    ];
    let mut text = String::new();
    for (name, builder, id, target) in cases {
        let problem = builder.build().unwrap();
        let config = crate::Config::Wgmma(Config::from(FAMILY.read_levers(id).unwrap()));
        let answer = match Plan::new(&problem, &config, target) {
            Ok(_) => "served".to_string(),
            Err(refusal) => refusal.to_string(),
        };
        text += &format!("{name} ({id}): {answer}\n");
    }
    insta::assert_snapshot!(text);
}

/// What a refusal names as enough is enough, and saves what it says.
#[test]
fn levers_save_what_a_refusal_says() {
    use crate::Plan;
    let wide = Problem::builder()
        .seq_len(128)
        .heads(4, 2)
        .head_dim(192)
        .head_dim_v(128)
        .build()
        .unwrap();
    let of = |id: &str| {
        Plan::new(
            &wide,
            &crate::Config::Wgmma(Config::from(FAMILY.read_levers(id).unwrap())),
            Target::Sm90a,
        )
    };
    let Err(Refusal::SharedMemory { needed, remedy, .. }) = of("m128n96-s4-pingpong-cond") else {
        panic!("it must be refused for its shared memory");
    };
    let mut offers = 0;
    for offer in remedy.split(", or ") {
        let words: Vec<&str> = offer.split(' ').collect();
        let [lever, _, _, to, _, saved, _] = words[..] else {
            panic!("{offer}");
        };
        let id = match lever {
            "stages" => format!("m128n96-s{to}-pingpong-cond"),
            "cols" => format!("m128n{to}-s4-pingpong-cond"),
            _ => format!("m{to}n96-s4-pingpong-cond"),
        };
        let less = of(&id).unwrap().main.kernel.ledger().total_bytes();
        // Where there is room, Q has a second stage again.
        let query = 2 * 192 * 128;
        let saved: u32 = saved.parse().unwrap();
        let estimated = needed - saved;
        let near = [less, less - query].map(|bytes| bytes.abs_diff(estimated) < SLACK_BYTES);
        assert!(near.contains(&true), "{offer}: {needed} to {less}");
        offers += 1;
    }
    assert!(offers >= 2, "{remedy}");
}

/// Two blocks an SM, also where a plan is asked for with more SMs than there are.
#[test]
fn two_blocks_an_sm_share_its_registers() {
    let problem = Problem::builder()
        .heads(4, 4)
        .seq_len(512)
        .head_dim(64)
        .build()
        .unwrap();
    let of_chip = |id: &str, chip: Chip| {
        let plan = crate::Plan::new(&problem, &id.parse().unwrap(), chip).unwrap();
        (plan.main.launch.grid[0], plan.main.kernel.to_ptx())
    };
    let target = Target::Sm90a;
    let blocks = |id: &str, sms| of_chip(id, Chip { target, sms });
    assert_eq!(blocks("wgmma/m64n64-s2-free-cond", 8).0, 8);
    let (two, ptx) = blocks("wgmma/m64n64-s2-free-cond-b2", 8);
    assert!(two == 16 && ptx.contains(".minnctapersm 2") && ptx.contains("setmaxnreg.inc.sync.aligned.u32 216"));
    let with_one_tile_each = Chip { target, sms: u32::MAX };
    assert_eq!(of_chip("wgmma/m64n64-s2-free-cond-b2", with_one_tile_each).0, 32);
    let many = Problem::builder()
        .batch(2)
        .heads(8, 8)
        .seq_len(4096)
        .head_dim(64)
        .build()
        .unwrap();
    for (id, blocks) in [
        ("wgmma/m64n64-s2-free-cond", 132),
        ("wgmma/m64n64-s2-free-cond-b2", 264),
    ] {
        let plan = crate::Plan::new(&many, &id.parse().unwrap(), Target::Sm90a).unwrap();
        assert_eq!(plan.main.launch.grid, [blocks, 1, 1], "{id}: an H200 has 132 SMs");
    }
    // Of 128 registers at launch ptxas leaves too few for 104 sums (C7602 on a GPU).
    let problem = Problem::builder()
        .heads(2, 2)
        .seq_len(400)
        .head_dim(32)
        .build()
        .unwrap();
    let plan = |id: &str| crate::Plan::new(&problem, &id.parse().unwrap(), Target::Sm90a);
    let refusal = plan("wgmma/m64n208-s3-free-always-b2").unwrap_err().to_string();
    assert!(refusal.contains("sums 104"), "{refusal}");
    assert!(plan("wgmma/m64n192-s3-free-always-b2").is_ok());
}
