//! Spellings: each is read as it is printed, own kernels use no others, and ptxas takes them.

use std::path::Path;

use crate::{EXAMPLE_REGISTERS, Module, Operand, Spelled, print, read, spellings};

/// Spellings of a row that are tried. The step between them visits every word of every modifier.
const A_ROW: usize = 64;

#[test]
fn every_spelling_reads_as_it_prints() {
    for spelled in spellings(1 << 12).into_iter().flatten() {
        let text = print(&spelled);
        assert_eq!(read(&text).map(|again| print(&again)), Ok(text));
    }
}

#[test]
fn no_row_is_empty_or_hidden_by_another() {
    for row in spellings(1 << 12) {
        assert!(!row.is_empty());
        let is_first = |spelled: &Spelled| read(&print(spelled)).as_ref() == Ok(spelled);
        let shown: Vec<String> = row.iter().map(print).collect();
        assert!(
            row.iter().any(is_first) || shown[0].starts_with("atom") || shown[0].starts_with("red"),
            "{}",
            shown[0]
        );
    }
}

#[test]
fn other_forms_are_missing_by_name() {
    for (form, why) in [
        ("tex.2d.v4.f32.f32", "textures and surfaces"),
        ("brx.idx", "indirect jumps"),
        ("add.f32.f32", "without these modifiers"),
        ("ld.global.v4.f64", "without these modifiers"),
        ("setp.hi.s32", "without these modifiers"),
        ("frobnicate.u32", "no such opcode"),
        ("", "no such opcode"),
    ] {
        let missing = read(form).unwrap_err();
        assert!(missing.why.contains(why) && missing.form == form, "{missing:?}");
    }
}

#[test]
fn words_that_no_row_has_are_missing_forms() {
    for form in spellings(8).into_iter().flatten() {
        let text = print(&form);
        let Some((before, _)) = text.rsplit_once('.') else {
            continue;
        };
        for word in ["é", "u", "€32"] {
            let form = format!("{before}.{word}");
            assert_eq!(read(&form).map_err(|missing| missing.form), Err(form));
        }
    }
    for form in ["ld.global.v4.", "st.shared.", "cvt.rn.f32.", "add.", "min..u32"] {
        assert!(read(form).is_err(), "{form}");
    }
}

/// Every opcode of a text, as it stands there: the first word of each line of a body, after its guard.
fn opcodes(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines().filter_map(|line| line.strip_prefix('\t'));
    let statements = lines.filter(|line| line.ends_with(';') && !line.starts_with('.'));
    statements.filter_map(|line| {
        let line = line.trim_end_matches(';');
        let mut words = line.split(' ').filter(|word| !word.starts_with('@'));
        words.next()
    })
}

/// That a text is understood whole, and its forms print as they stand in it.
fn assert_read(text: &str, name: &str) {
    let module = Module::read(text).unwrap_or_else(|error| panic!("{name}: {error}"));
    for kernel in &module.kernels {
        let told = module.understood(kernel, |_| None).unwrap();
        assert_eq!(told.missing, [], "{name}");
        let printed = kernel
            .instructions
            .iter()
            .map(|inst| print(module.forms()[inst.form as usize].as_ref().unwrap()));
        assert!(printed.eq(opcodes(text)), "{name}");
    }
}

#[test]
fn every_instruction_of_the_kernel_language_is_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/ir/tests/it/every_instruction/snapshots");
    let mut count = 0;
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let Some(begin) = text.find(".version") else { continue };
        assert_read(&text[begin..], &path.display().to_string());
        count += 1;
    }
    assert!(count >= 20, "{count}");
}

mod with_ptxas {
    use std::process::Command;

    use super::*;

    #[test]
    #[ignore = "needs ptxas: FLASHCORE_PTXAS"]
    fn ptxas_takes_every_spelling() {
        let Some(ptxas) = std::env::var_os("FLASHCORE_PTXAS") else {
            assert!(
                std::env::var_os("FLASHCORE_REQUIRE_PTXAS").is_none(),
                "no FLASHCORE_PTXAS"
            );
            return eprintln!("skipped: no FLASHCORE_PTXAS");
        };
        let lines: Vec<String> = spellings(A_ROW).iter().flatten().filter_map(Spelled::example).collect();
        // ptxas 13.0 and 13.5 crash where a product of a warpgroup is never reached, so these are in their own kernel.
        let (products, others): (Vec<String>, _) = lines.into_iter().partition(|line| line.starts_with("wgmma"));
        let kernel = |name: &str, body: &str| {
            format!(".visible .entry {name}(.param .align 16 .b8 k[64]) {{ {EXAMPLE_REGISTERS}\n{body}\nEND: ret; }}\n")
        };
        let text = ".version 9.0\n.target sm_90a\n.address_size 64\n".to_string()
            + &kernel("k", &format!("ret;\n{}", others.join("\n")))
            + &kernel("w", &products.join("\n"));
        let folder = std::env::temp_dir().join(format!("flashcore-ptx-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("spellings.ptx");
        std::fs::write(&file, &text).unwrap();
        let run = Command::new(ptxas)
            .args(["-arch", "sm_90a", "-O0", "-o"])
            .arg(folder.join("out"))
            .arg(&file)
            .output();
        let run = run.unwrap();
        let said = String::from_utf8_lossy(&run.stdout) + String::from_utf8_lossy(&run.stderr);
        let text: Vec<&str> = text.lines().collect();
        let refused = said.lines().filter(|line| !line.contains(" info ")).map(|line| {
            let number = line
                .split("line ")
                .nth(1)
                .and_then(|rest| rest.split(';').next()?.parse::<usize>().ok());
            format!(
                "{}: {line}",
                number.and_then(|number| text.get(number - 1)).unwrap_or(&"")
            )
        });
        let refused: Vec<String> = refused.collect();
        std::fs::remove_dir_all(&folder).unwrap();
        let count = others.len() + products.len();
        let refused = refused.join("\n");
        assert!(
            run.status.success() && refused.is_empty(),
            "{} of {count}:\n{refused}",
            run.status
        );
        assert!(count > 10_000, "{count}");
    }
}

#[test]
fn lines_are_those_of_the_user() {
    let text = r#".version 8.0 .target sm_80
.file 1 "user.cu"
.file 2 "cuda_fp16.hpp"
.entry k() {
.reg .b32 %r<9>;
.loc 1 20 5
.loc 2 99 3, function_name $L__info_string0, inlined_at 1 20 5
tex.a %r1;
.loc 1 10 1, function_name $L__info_string1, inlined_at 1 30 2
tex.a %r1;
.loc 2 99 3, function_name $L__info_string2+4, inlined_at 1 10 1
tex.a %r1;
ret;
}"#;
    let module = Module::read(text).unwrap();
    let told = module.understood(&module.kernels[0], |_| None).unwrap();
    let lines: Vec<(Option<&str>, u32)> = told.missing[0]
        .lines
        .iter()
        .map(|line| (line.file.as_deref(), line.line))
        .collect();
    // The inlined function's own line where it is in the user's file, else the line that calls it.
    assert_eq!(lines, [(Some("user.cu"), 20), (Some("user.cu"), 10)]);
    assert_eq!((told.missing[0].count, told.understood, told.instructions), (3, 1, 4));
}

#[test]
fn forms_of_called_functions_count_and_recursion_is_missing() {
    let text = ".version 8.0 .target sm_80
.extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);
.extern .func other();
.func leaf() { .reg .b32 %r<2>; brx.idx %r1, list; ret; }
.func again() { call.uni again, (); ret; }
.entry k() { .reg .b64 %rd<3>; .reg .b32 %r<2>;
{ .param .b64 a; .param .b32 out; call.uni (out), vprintf, (a, a); }
call.uni leaf;
call.uni other;
call.uni again, ();
call (out), %rd1, (a), proto;
ret; }
.entry l() { .shared .b8 own[4]; ret; }";
    let module = Module::read(text).unwrap();
    let told = module.understood(&module.kernels[0], |_| None).unwrap();
    let mut found: Vec<(&str, &str, u64)> = told
        .missing
        .iter()
        .map(|missing| (missing.form.as_str(), missing.why.as_str(), missing.count))
        .collect();
    found.sort_unstable();
    assert_eq!(
        found,
        [
            ("brx.idx", "indirect jumps are not read", 1),
            ("call", "indirect calls are not read", 1),
            ("call again", "it calls itself, directly or through others", 2),
            ("call other", "this text has no such function", 1),
        ]
    );
    let told = module.understood(&module.kernels[1], |_| None).unwrap();
    assert_eq!((told.instructions, told.missing.len()), (1, 0));
    assert_eq!(module.shared_of(&module.kernels[1]).unwrap()[0].bytes, 4);
    assert!(module.shared_of(&module.kernels[0]).unwrap().is_empty());
}

#[test]
fn names_are_of_the_innermost_block() {
    let text = ".version 8.0 .target sm_80 .entry k() { .reg .b32 %r<4>, x;
        mov.b32 x, %r3; { .reg .b32 x; .reg .b64 %r<2>; mov.b32 x, 1; mov.b64 %r1, 2; mov.b32 %r2, 3; bra L; L: }
        mov.b32 x, -1; bra L; L: ret; }";
    let module = Module::read(text).unwrap();
    let kernel = &module.kernels[0];
    let first: Vec<&Operand> = kernel
        .instructions
        .iter()
        .filter_map(|inst| inst.operands.first())
        .collect();
    let register = |number| Operand::Register(crate::Register(number));
    let wanted = [
        register(4),
        register(5),
        register(7),
        register(2),
        Operand::Label(1),
        register(4),
        Operand::Label(0),
    ];
    assert_eq!(first, wanted.iter().collect::<Vec<_>>());
    assert_eq!(kernel.labels, [7, 5]);
}

#[test]
fn texts_beyond_a_limit_say_which() {
    let text = |body: &str| format!(".version 8.0 .target sm_80\n.entry k() {{ .reg .b32 %r<2>;\n{body}\nret; }}");
    let nested = |n: usize| text(&("{".repeat(n) + &"}".repeat(n)));
    assert!(Module::read(&nested(200)).is_ok());
    let long = "add.s32 %r0, %r0, %r1;\n".repeat((1 << 20) + 1);
    let lists = format!("mov.b32 %r0, {}%r1{};", "{".repeat(9), "}".repeat(9));
    for (text, why) in [
        (nested(300), "line 3: 257 blocks in one another; at most 256 is allowed"),
        (nested(100_000), "blocks in one another"),
        (text(&long), "instructions; at most 1048576 is allowed"),
        (text(&lists), "9 braces and brackets in one another"),
        (text(".reg .b32 %x<2000000>;"), "registers; at most 1048576 is allowed"),
        (text("@%r5 ret;"), "expected a predicate, found `%r5`"),
        (text("@nothing ret;"), "expected a predicate, found `nothing`"),
        (text(".reg .b32 a; .reg .b32 a;"), "register `a` is declared twice"),
        (text("L: L: ret;"), "label `L` is declared twice"),
        (text("ld.u32 %r1, [%r1;"), "line 3: expected `]`"),
        (text("mov.b32 %r1, -x;"), "expected a number, found `x`"),
        (text("}"), "expected"),
    ] {
        let error = Module::read(&text).unwrap_err().to_string();
        assert!(error.contains(why), "{why}: {error}");
    }
    let calls: String = (0..70)
        .map(|n| format!(".func f{n}() {{ call.uni f{}; ret; }}\n", n + 1))
        .collect();
    let text = format!(".version 8.0 .target sm_80\n{calls}.func f70() {{ ret; }} .entry k() {{ call.uni f0; ret; }}");
    let module = Module::read(&text).unwrap();
    let error = module.understood(&module.kernels[0], |_| None).unwrap_err().to_string();
    assert!(error.contains("calls in one another; at most 64 is allowed"), "{error}");
}

#[test]
fn names_that_stand_for_nothing_are_missing() {
    let text =
        ".version 8.0 .target sm_80 .entry k() { .reg .b32 %r<2>; mov.b32 %r0, %envreg2;\nld.u32 %r0, [%rd7]; ret; }";
    let module = Module::read(text).unwrap();
    let told = module.understood(&module.kernels[0], |_| None).unwrap();
    let found: Vec<(&str, u64)> = told
        .missing
        .iter()
        .map(|missing| (missing.form.as_str(), missing.count))
        .collect();
    assert_eq!(found, [("%envreg2", 1), ("%rd7", 1)]);
    assert!(told.missing[0].why.starts_with("it is neither a declared register"));
}
