//! Modules: what is compiled, what is refused, what is remembered.

use std::time::Instant;

use flashcore_cuda::{DeviceBuffer, LaunchShape, ModuleOptions};

use super::{Bench, KernelArg, Outcome, Own, ensure, load_ptx, ptx, refused};

pub(crate) fn identity(bench: &Bench) -> Outcome {
    let strict = ModuleOptions::default();
    let fresh_options = ModuleOptions {
        recompile: true,
        ..strict
    };
    let fresh = load_ptx(&bench.context, ptx::VECTOR_ADD, &fresh_options)?;
    let report = fresh.report();
    ensure!(
        report.compiled,
        "recompiling gave no log; the driver's cache was used: {report:?}"
    );
    let log = report
        .log
        .kernel("vector_add")
        .ok_or("the log does not name the kernel")?;
    let (_, attributes) = &report.functions[0];
    ensure!(
        log.registers == Some(attributes.registers),
        "log {log:?}, attributes {attributes:?}"
    );
    ensure!(
        log.spills == Some((0, 0)) && attributes.local_bytes == 0,
        "log {log:?}, attributes {attributes:?}"
    );

    let first = load_ptx(&bench.context, ptx::VECTOR_ADD, &strict)?;
    let again = Instant::now();
    let second = load_ptx(&bench.context, ptx::VECTOR_ADD, &strict)?;
    let again = again.elapsed();
    ensure!(
        std::ptr::eq(first.report(), second.report()),
        "the second load did not find the first"
    );
    ensure!(first.identity() == fresh.identity(), "recompiling changed the identity");
    let with_lines = ptx::VECTOR_ADD.replace("    ret;\n}", "    .loc 1 3 0\n    ret;\n}");
    let with_lines = with_lines.replace(".address_size 64\n", ".address_size 64\n.file 1 \"vector_add.rs\"\n");
    let lined = load_ptx(
        &bench.context,
        &with_lines,
        &ModuleOptions {
            line_info: true,
            ..strict
        },
    )?;
    ensure!(lined.identity() == first.identity(), "debug lines changed the identity");
    refused(
        first.function("vector_sub"),
        &["no kernel `vector_sub`", "it has vector_add"],
    )?;
    drop(lined);
    let forgotten = bench.context.forget_unused_modules();
    ensure!(forgotten >= 1, "no unused module was forgotten");
    Ok(format!(
        "{}; fresh {:.1} ms (compiler {:.1} ms), then {} {:.2} ms, then {:.1} µs; notes {:?}; log:\n{}",
        first.identity(),
        report.load_ms,
        report.compile_ms,
        if first.report().compiled {
            "compiled"
        } else {
            "from the driver's cache"
        },
        first.report().load_ms,
        again.as_secs_f64() * 1e6,
        report.notes,
        report.log_text.trim_end()
    ))
}

pub(crate) fn bad_ptx(bench: &Bench) -> Outcome {
    let strict = ModuleOptions::default();
    let typo = ptx::VECTOR_ADD.replace("add.f32", "ad.f32");
    let text = refused(
        load_ptx(&bench.context, &typo, &strict),
        &["cuModuleLoadDataEx", "INVALID_PTX", "log"],
    )?;
    refused(load_ptx(&bench.context, "not PTX", &strict), &["cuModuleLoadDataEx"])?;
    refused(load_ptx(&bench.context, "a\0b", &strict), &["zero byte"])?;
    let newer = ptx::VECTOR_ADD.replace(".version 7.0", ".version 99.0");
    refused(load_ptx(&bench.context, &newer, &strict), &["cuModuleLoadDataEx"])?;
    let elsewhere = ptx::VECTOR_ADD
        .replace(".version 7.0", ".version 8.8")
        .replace("sm_80", "sm_121a");
    refused(load_ptx(&bench.context, &elsewhere, &strict), &["cuModuleLoadDataEx"])?;
    Ok(text)
}

pub(crate) fn static_overflow(bench: &Bench) -> Outcome {
    let loaded = load_ptx(&bench.context, ptx::STATIC_OVERFLOW, &ModuleOptions::default());
    match loaded {
        // Compilers differ in whether they let it through; what comes through is not launched.
        Ok(module) => {
            let text = refused(
                module.function("static_overflow")?.prove(&LaunchShape::linear(1, 32)),
                &["57376 B of static shared memory", "49152"],
            )?;
            Ok(format!("compiled; {text}"))
        }
        Err(error) => refused(Err::<(), _>(error), &["cuModuleLoadDataEx", "shared"]),
    }
}

pub(crate) fn local_memory(bench: &Bench) -> Outcome {
    let text = refused(
        load_ptx(&bench.context, ptx::LOCAL_ARRAY, &ModuleOptions::default()),
        &["`local_array`", "local memory a thread", "allow_local_memory"],
    )?;
    let allow = ModuleOptions {
        allow_local_memory: true,
        ..ModuleOptions::default()
    };
    let function = load_ptx(&bench.context, ptx::LOCAL_ARRAY, &allow)?.function("local_array")?;
    ensure!(function.attributes().local_bytes >= 256, "{:?}", function.attributes());
    let out = DeviceBuffer::from_host(&bench.stream, &[0u32])?;
    // SAFETY: the kernel writes the buffer's one word.
    unsafe {
        let arguments = [KernelArg::Slice(out.as_slice()), KernelArg::U32(16)];
        function.launch(&bench.stream, &LaunchShape::linear(1, 1), &arguments)?;
    }
    ensure!(
        out.to_vec::<u32>(&bench.stream)? == [16],
        "it does not run when allowed"
    );
    Ok(text)
}

pub(crate) fn warnings(bench: &Bench) -> Outcome {
    if !bench.is_hopper() {
        return Ok("not Hopper: nothing to warn of".to_string());
    }
    let fresh = ModuleOptions {
        recompile: true,
        ..ModuleOptions::default()
    };
    let text = refused(
        load_ptx(&bench.context, ptx::UNWAITED_WGMMA, &fresh),
        &["C75", "slow kernel", "allow_performance_warnings"],
    )?;
    let allow = ModuleOptions {
        allow_performance_warnings: true,
        ..ModuleOptions::default()
    };
    load_ptx(&bench.context, ptx::UNWAITED_WGMMA, &allow)?;
    Ok(text)
}
