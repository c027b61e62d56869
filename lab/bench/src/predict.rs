//! Predicted times in place of measured ones: a request for a card that need not be here gives the report of a bench,
//! whose times are marked.

use flashcore::unstable::plans::{PlanTarget, Plans};
use flashcore_check::cost::{Forecast, NoForecast};
use flashcore_ir::Profile;
use flashcore_kernels::KernelCache;

use crate::own::Code;
use crate::session::{Session, check_caches};
use crate::stand::{For, built, left_out};
use crate::{
    Absent, BenchError, Case, CaseResult, DeviceIdentity, Interval, LaunchMode, Measured, Measurement, Mode, Options,
    Predicted, Report, Request, Result, Stop, Store, SubjectInfo, Watcher,
};

/// Predicts the time of each kernel of a request on a card, from its profile. Nothing runs, so there are no peers and
/// no inspections; registers are those of a `ptxas`, where there is one.
///
/// # Errors
/// Modes that the model does not cover, plan tables that cannot be read, a store that cannot be written. A kernel whose
/// time is not predicted stands in the report with its reason.
pub fn predict(
    profile: &'static Profile,
    request: &Request,
    store: Option<&Store>,
    watcher: &mut dyn Watcher,
) -> Result<Report> {
    request.options.check()?;
    check_caches(request, false)?;
    if let Some(mode) = request.modes.iter().find(|mode| **mode != Mode::Hot) {
        let why = "times are predicted for warm caches; leave out --mode";
        return Err(BenchError::Given(format!("mode is {mode}: {why}")));
    }
    let plans = Plans::load(&PlanTarget::Card(profile)).map_err(flashcore::Error::from)?;
    let mut session = Session::begin(request, DeviceIdentity::predicted(profile), None, store, watcher)?;
    let cache = KernelCache::default();
    for (index, case) in request.cases.iter().enumerate() {
        session.begins(case, index);
        let (subjects, absent) = subjects(request, case, (profile, &plans), &cache);
        for (label, reason) in &absent {
            session.inspected(label, reason);
        }
        let infos: Vec<SubjectInfo> = subjects.iter().map(|subject| subject.info.clone()).collect();
        let baseline = session.baseline(&infos);
        let measurement = Measurement::without_rounds(Mode::Hot, baseline, subjects, Stop::Predicted);
        let inspections = vec![None; infos.len()];
        if let Some(run) = &session.kept {
            let rows: Vec<_> = infos.into_iter().map(|info| (info, None)).collect();
            run.begin_measurement(case, Mode::Hot, baseline, &rows)?;
            run.end_measurement(&measurement)?;
        }
        session.add(CaseResult::new(case.clone(), measurement, inspections, absent, None));
    }
    session.finish()
}

fn subjects(
    request: &Request,
    case: &Case,
    (profile, plans): (&'static Profile, &Plans),
    cache: &KernelCache,
) -> (Vec<Measured>, Vec<Absent>) {
    let (kernels, mut absent) = built(request, &case.problem, &For::Card(profile, plans), cache);
    let mut subjects = Vec::new();
    let mut add = |info: SubjectInfo, forecast: std::result::Result<Forecast, NoForecast>| {
        let forecast = forecast.map_err(|why| why.to_string());
        // A user's kernel may spill.
        let spills = |forecast: &Forecast| forecast.spills().filter(|_| info.is_ours());
        match forecast.and_then(|forecast| spills(&forecast).map_or(Ok(forecast), Err)) {
            Ok(forecast) => subjects.push(measured(info, &forecast)),
            Err(why) => absent.push(left_out(&info.label, &why)),
        }
    };
    for kernel in &kernels {
        let Some(plan) = kernel.plan() else { continue };
        let info = SubjectInfo::ours(kernel.id(), LaunchMode::Graph(1));
        add(info, Forecast::of(plan, cache, profile));
    }
    for own in &request.own {
        let info = SubjectInfo::new(own.label.clone(), LaunchMode::Graph(1));
        add(
            info,
            match &own.code {
                Code::Ptx(declared) => Forecast::of_declared(declared, &case.problem, profile),
                Code::Python(_) => Err(NoForecast::Unknown("a Python function is not predicted".to_string())),
            },
        );
    }
    (subjects, absent)
}

fn measured(mut info: SubjectInfo, forecast: &Forecast) -> Measured {
    let prediction = &forecast.prediction;
    let registers = prediction.steps.iter().map(|step| step.registers.to_string());
    let registers = Vec::from_iter(registers).join(" + ");
    let by = forecast.assembler.as_deref().unwrap_or("an estimate");
    info.options = format!("{registers} registers a thread by {by}");
    info.predicted = Some(Predicted {
        us: prediction.micros,
        interval: Interval::new(prediction.low_micros, prediction.high_micros),
    });
    let mut measured = Measured::untimed(info, None);
    measured.settled = true;
    measured.evaluate(&[], 0, 0, &Options::default());
    measured
}

#[cfg(test)]
mod tests {
    use flashcore_problem::Problem;

    use super::*;
    use crate::table;

    #[test]
    fn predictions_are_marked_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::at(folder.path());
        let small = Problem::builder().heads(2, 2).seq_len(128).head_dim(64);
        let ids = [
            "mma/m64n64-w4x1-s2-b1-qreg-xor-cond",
            "mma/m64n64-w4x1-s2-b1-qreg-lin-cond",
        ];
        let request = Request {
            cases: vec![Case::new("small", small.build().unwrap())],
            kernels: ids.map(String::from).to_vec(),
            ..Request::default()
        };
        let l4 = Profile::named("l4").unwrap();
        let report = predict(l4, &request, Some(&store), &mut ()).unwrap();
        let subjects = &report.results[0].measurement.subjects;
        let [fast, slow] = [0, 1].map(|at: usize| subjects[at].summary.unwrap());
        // Bank conflicts cost time.
        assert!(fast.p50 < slow.p50 && fast.interval.lo < fast.p50 && fast.p90 > fast.p50);
        let text = table::text(&report);
        for said in [
            "NVIDIA L4 (PREDICTED)",
            "hot (PREDICTED), by the cost model",
            " PREDICTED\n",
        ] {
            assert!(text.contains(said), "{said}\n{text}");
        }
        assert!(table::csv(&report).contains(",PREDICTED,"), "{}", table::csv(&report));
        let run = store.runs(&crate::store::Selector::Latest).unwrap().remove(0);
        let again = Report::of_evidence(&run, store.measurements(&run).unwrap());
        assert_eq!(again.results, report.results);
        let cold = Request {
            modes: vec![Mode::Cold],
            options: Options::default(),
            ..request
        };
        assert!(
            predict(l4, &cold, None, &mut ())
                .unwrap_err()
                .to_string()
                .contains("warm caches")
        );
    }
}
