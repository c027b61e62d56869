//! What a search's winner makes of the user's tables: a row, or one less where heuristics choose the winner by themselves;
//! and whether the library uses it from then on, for a row that is read earlier may be for the problem, too.

use std::fmt;
use std::path::{Path, PathBuf};

use flashcore::{KernelId, PlanDevice, PlanRow, PlanSetting, PlanTarget, Plans, Problem};
use serde::Serialize;

use super::file::{Put, Taken, drop_unless, file_of, keep_unless, place_for, read};
use super::{date, device_of, in_heuristics};
use crate::board::Board;
use crate::default::chosen;
use crate::error::TuneError;
use crate::journal::Header;

/// A row of a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Place {
    /// The file, or what the shipped table is called.
    pub table: String,
    /// Which row of it, from 1.
    pub number: usize,
    /// Its kernel.
    pub kernel: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "row {} of {}", self.number, self.table)
    }
}

/// What became of a winner.
#[derive(Debug)]
pub enum Settled {
    /// A row was written.
    Row {
        /// The file.
        file: PathBuf,
        /// Which row of it, from 1.
        number: usize,
        /// The row.
        row: Box<PlanRow>,
        /// Of a winner that heuristics choose, too: the row that goes before them, so that this one is needed.
        over: Option<Place>,
        /// What the library uses now.
        used: KernelId,
        /// Rows that are read before it and have another kernel: as long as they are there it is not used.
        shadows: Vec<Place>,
    },
    /// Heuristics choose the winner, so that no row says it.
    Heuristics {
        /// The winner.
        winner: KernelId,
        /// The user's row for the problem that was slower, and is gone.
        dropped: Option<Place>,
        /// What the library uses now.
        used: KernelId,
        /// Rows that go before heuristics and have another kernel.
        shadows: Vec<Place>,
    },
    /// The user has a row for the problem whose kernel was not in the finals, so that nothing is known against it: where
    /// `FLASHCORE_PLANS` pinned another table, or a search began elsewhere. It stays.
    NotMeasured {
        /// The winner.
        winner: KernelId,
        /// The row.
        stays: Place,
    },
    /// The user's row for the problem is of a later day than these finals: a run that was taken up again long after they
    /// were held. It stays.
    Newer {
        /// The winner.
        winner: KernelId,
        /// The row.
        stays: Place,
        /// Its day, as in tables.
        dated: String,
        /// The day of the finals.
        held: String,
    },
}

/// Why the user's row for a problem stays.
enum Why {
    NotMeasured,
    /// It is of this later day.
    Newer(String),
}

/// Puts the row of a search's winner ([`of_board`](super::of_board)) into the user's table for the device, in a folder of
/// tables; its date is the day on which the finals were held, which was `held_at` seconds after 1970. A winner that
/// heuristics choose takes the user's row for the problem out instead, if its kernel was in the finals; a row is written for
/// it only where another one, such as a shipped one, would go before heuristics. A row whose kernel was not in the finals,
/// or that is of a later day, is never replaced.
///
/// # Errors
/// As [`keep`](super::keep).
pub fn settle(
    folder: &Path,
    header: &Header,
    board: &Board,
    mut row: PlanRow,
    held_at: u64,
) -> Result<Settled, TuneError> {
    let Some(device) = header.devices.first().map(device_of) else {
        return Err(TuneError::Nothing {
            what: "the run names no device".to_string(),
        });
    };
    row.date = date(held_at);
    let (held, winner) = (row.date.clone(), row.kernel);
    let file = file_of(folder, &device);
    let look = || looked(folder, &header.problem, &device, winner);
    // The same kernel may be said again, by the newer finals.
    let stays = |own: &PlanRow, is_in_finals: bool| match is_day(&own.date) && own.date > held {
        true => Some(Why::Newer(own.date.clone())),
        false => (!is_in_finals).then_some(Why::NotMeasured),
    };
    let was_there = |own: &PlanRow| {
        let id = own.kernel.to_string();
        let struck = board.struck.iter().any(|struck| struck.id == id);
        struck || board.rows.iter().any(|finalist| finalist.id == id)
    };
    let newer = |stays, dated| Settled::Newer {
        winner,
        stays,
        dated,
        held: held.clone(),
    };
    let mut over = None;
    if in_heuristics(header, &row) {
        let taken = drop_unless(&file, &device, &row.problem, |own| stays(own, was_there(own)))?;
        let dropped = match taken {
            Some(Taken::Stays(place, Why::Newer(dated))) => return Ok(newer(place, dated)),
            Some(Taken::Out(place)) => Some(place),
            Some(Taken::Stays(_, Why::NotMeasured)) | None => None,
        };
        let (used, shadows) = look()?;
        // It was not measured here, so that nothing is known against it.
        let stays = own_row(&file, &row)?.is_some();
        let behind = |place: &&Place| !is_user(folder, place) || Path::new(&place.table) >= file;
        over = shadows.iter().find(behind).cloned();
        if stays || over.is_none() {
            return Ok(Settled::Heuristics {
                winner,
                dropped,
                used,
                shadows,
            });
        }
    }
    let known = |own: &PlanRow| own.kernel == winner || was_there(own);
    let number = match keep_unless(folder, &device, row.clone(), |own| stays(own, known(own)))? {
        Put::Row(number) => number,
        Put::Stays(stays, Why::NotMeasured) => return Ok(Settled::NotMeasured { winner, stays }),
        Put::Stays(stays, Why::Newer(dated)) => return Ok(newer(stays, dated)),
    };
    let (used, shadows) = look()?;
    Ok(Settled::Row {
        file,
        number,
        row: Box::new(row),
        over,
        used,
        shadows,
    })
}

/// Whether a date is one: somebody may have written a row by hand.
fn is_day(text: &str) -> bool {
    text.len() == 10 && text.chars().all(|c| c.is_ascii_digit() || c == '-')
}

/// The row of a table for exactly the problems of another row, where table and row are there.
fn own_row(file: &Path, row: &PlanRow) -> Result<Option<Place>, TuneError> {
    if !file.exists() {
        return Ok(None);
    }
    Ok(place_for(file, &read(file)?, &row.problem))
}

/// Whether a row is in a table of the user's, and can be dropped.
fn is_user(folder: &Path, place: &Place) -> bool {
    Path::new(&place.table).starts_with(folder)
}

/// What the library uses, where nothing pins it; and where that is another kernel than this one, the rows that are to blame:
/// the one that is used, and all that come after it before one with this kernel.
fn looked(
    folder: &Path,
    problem: &Problem,
    device: &PlanDevice,
    kernel: KernelId,
) -> Result<(KernelId, Vec<Place>), TuneError> {
    let target = PlanTarget::Device(device.clone());
    let plans = Plans::find(&PlanSetting::Usual, Some(folder), &target).map_err(flashcore::Error::from)?;
    let (used, place) = chosen(problem, device, &plans)?;
    let Some(place) = place.filter(|_| used != kernel) else {
        return Ok((used, Vec::new()));
    };
    let rows = plans.rows(problem).into_iter().skip(place);
    let others = rows.take_while(|found| found.row.kernel != kernel);
    let shadows = others.map(|found| Place {
        table: found.table.to_string(),
        number: found.number,
        kernel: found.row.kernel.to_string(),
    });
    Ok((used, shadows.collect()))
}

#[cfg(test)]
mod tests {
    use flashcore::{PlanClass, PlanTable};

    use super::*;
    use crate::plans::file::tests::folder;
    use crate::plans::file::write;
    use crate::plans::tests::{found, host, of, problem};
    use crate::plans::{drop_row, heuristics, judge_board, keep, of_board};

    const OLD: &str = "cpu/m48n48";
    const WINNER: &str = "cpu/m48n36";

    /// A board of a search that began at a row with [`OLD`].
    fn from_row(winner: &str) -> (Header, Board) {
        let (mut header, board) = found(OLD, winner);
        let default = header.default.as_mut().unwrap();
        default.kernel = OLD.to_string();
        default.row = Some("row 1 of a table".to_string());
        (header, board)
    }

    /// A moment of the day after that on which the rows of tests were measured.
    const NEXT_DAY: u64 = 1_795_219_200 + 86_400;

    fn settled(folder: &Path, run: &(Header, Board)) -> Settled {
        settled_at(folder, run, NEXT_DAY)
    }

    fn settled_at(folder: &Path, (header, board): &(Header, Board), held_at: u64) -> Settled {
        let row = of_board(header, board).unwrap();
        settle(folder, header, board, row, held_at).unwrap()
    }

    fn used(folder: &Path) -> String {
        let device = device_of(&host());
        let (used, _) = looked(folder, &problem(100), &device, OLD.parse().unwrap()).unwrap();
        used.to_string()
    }

    fn table_with(path: &Path, rows: &[PlanRow]) {
        let mut table = PlanTable::new(device_of(&host()));
        rows.iter().for_each(|row| table.put(row.clone()));
        write(path, &table).unwrap();
    }

    #[test]
    fn a_row_that_is_read_earlier_is_named_and_nothing_is_claimed() {
        let folder = folder("shadowed");
        std::fs::create_dir_all(&folder).unwrap();
        let earlier = folder.join("0.json");
        table_with(&earlier, &[of(64, OLD), of(100, OLD)]);
        let run = from_row(WINNER);
        let Settled::Row {
            file,
            used: now,
            shadows,
            ..
        } = settled(&folder, &run)
        else {
            panic!("no row")
        };
        assert!(earlier < file);
        let place = Place {
            table: earlier.display().to_string(),
            number: 2,
            kernel: OLD.to_string(),
        };
        assert_eq!((now.to_string().as_str(), shadows), (OLD, vec![place]));
        assert_eq!(used(&folder), OLD);
        // What it says to do helps.
        drop_row(&earlier, 2, Some(OLD)).unwrap();
        assert_eq!(used(&folder), WINNER);
        let Settled::Row { used: now, shadows, .. } = settled(&folder, &run) else {
            panic!("no row")
        };
        assert_eq!((now.to_string().as_str(), shadows), (WINNER, Vec::new()));
        // One that is read later is in nobody's way.
        table_with(&folder.join("zz.json"), &[of(100, OLD)]);
        let Settled::Row { shadows, .. } = settled(&folder, &run) else {
            panic!("no row")
        };
        assert_eq!(shadows, Vec::new());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_winner_that_heuristics_choose_takes_the_old_row_out() {
        let folder = folder("heuristics");
        let device = device_of(&host());
        let by_heuristics = heuristics(&problem(100), &host()).unwrap().to_string();
        let run = from_row(&by_heuristics);
        assert!(judge_board(&run.0, &run.1).row.is_none());
        let file = keep(&folder, &device, of(100, OLD)).unwrap();
        keep(&folder, &device, of(640, OLD)).unwrap();
        let Settled::Heuristics { dropped, shadows, .. } = settled(&folder, &run) else {
            panic!("a row that says what heuristics say")
        };
        let dropped = dropped.unwrap();
        assert_eq!((dropped.number, dropped.kernel.as_str(), shadows), (1, OLD, Vec::new()));
        assert_eq!(read(&file).unwrap().rows().count(), 1);
        assert_eq!(used(&folder), by_heuristics);
        // There is nothing left to drop, and nothing to write.
        let again = settled(&folder, &run);
        assert!(matches!(again, Settled::Heuristics { dropped: None, .. }), "{again:?}");
        assert_eq!(read(&file).unwrap().rows().count(), 1);

        // A file of the user's own is theirs; a row in ours would not help.
        let earlier = folder.join("0.json");
        table_with(&earlier, &[of(100, OLD)]);
        let Settled::Heuristics { shadows, used: now, .. } = settled(&folder, &run) else {
            panic!("a row that is not used")
        };
        assert_eq!((shadows[0].number, now.to_string().as_str()), (1, OLD));
        std::fs::remove_file(&earlier).unwrap();

        // A row that was not in the finals is not known to be slower.
        keep(&folder, &device, of(100, WINNER)).unwrap();
        let Settled::Heuristics { dropped, shadows, .. } = settled(&folder, &run) else {
            panic!("a row in place of one that was not measured")
        };
        assert_eq!((dropped, shadows[0].kernel.as_str()), (None, WINNER));
        assert_eq!(used(&folder), WINNER);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_row_that_was_not_measured_is_not_replaced() {
        let folder = folder("unmeasured");
        let device = device_of(&host());
        // As with another table pinned: the search begins at another kernel than the user's row.
        let file = keep(&folder, &device, of(100, "cpu/m64n64")).unwrap();
        let before = std::fs::read_to_string(&file).unwrap();
        let run = from_row(WINNER);
        let Settled::NotMeasured { winner, stays } = settled(&folder, &run) else {
            panic!("a row was replaced")
        };
        assert_eq!(
            (winner.to_string().as_str(), stays.number, stays.kernel.as_str()),
            (WINNER, 1, "cpu/m64n64")
        );
        assert_eq!(std::fs::read_to_string(&file).unwrap(), before);
        // One that was in the finals is.
        keep(&folder, &device, of(100, OLD)).unwrap();
        assert!(matches!(settled(&folder, &run), Settled::Row { .. }));
        assert_eq!(used(&folder), WINNER);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// A run is taken up again long after its finals, with nothing left to do but the row.
    #[test]
    fn a_row_of_a_later_day_than_the_finals_is_neither_replaced_nor_taken_out() {
        let folder = folder("newer");
        let device = device_of(&host());
        // Both were in the finals, and the row is of the day after them.
        let file = keep(&folder, &device, of(100, OLD)).unwrap();
        let before = std::fs::read_to_string(&file).unwrap();
        let by_heuristics = heuristics(&problem(100), &host()).unwrap().to_string();
        for winner in [WINNER, &by_heuristics] {
            let settled = settled_at(&folder, &from_row(winner), NEXT_DAY - 2 * 86_400);
            let Settled::Newer { stays, dated, held, .. } = settled else {
                panic!("{winner}: {settled:?}")
            };
            assert_eq!((stays.number, stays.kernel.as_str()), (1, OLD));
            assert_eq!((dated.as_str(), held.as_str()), ("2026-11-21", "2026-11-20"));
            assert_eq!(std::fs::read_to_string(&file).unwrap(), before);
        }
        // Of the same day, or later: the date of the row is that of the finals, whenever the run began.
        for (held_at, date) in [(NEXT_DAY - 86_400, "2026-11-21"), (NEXT_DAY + 86_400, "2026-11-23")] {
            let settled = settled_at(&folder, &from_row(WINNER), held_at);
            assert!(
                matches!(&settled, Settled::Row { row, .. } if row.date == date),
                "{settled:?}"
            );
            assert_eq!(read(&file).unwrap().rows().next().unwrap().1.date, date);
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// Two searches that end together: the row that the other one wrote last was in neither's finals but its own.
    #[test]
    fn a_row_that_comes_while_another_waits_for_its_turn_is_not_replaced() {
        let folder = folder("together");
        std::fs::create_dir_all(&folder).unwrap();
        let file = file_of(&folder, &device_of(&host()));
        let lock = std::fs::File::create(file.with_extension("lock")).unwrap();
        lock.lock().unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| settled(&folder, &from_row(WINNER)));
            // Long enough to come to the lock; whatever is read before it says nothing.
            std::thread::sleep(std::time::Duration::from_millis(200));
            table_with(&file, &[of(100, "cpu/m64n64")]);
            lock.unlock().unwrap();
            let settled = waits.join().unwrap();
            assert!(
                matches!(&settled, Settled::NotMeasured { stays, .. } if stays.kernel == "cpu/m64n64"),
                "{settled:?}"
            );
        });
        assert_eq!(used(&folder), "cpu/m64n64");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_row_that_says_what_heuristics_say_is_written_where_another_goes_before_them() {
        let folder = folder("over");
        let device = device_of(&host());
        let by_heuristics = heuristics(&problem(100), &host()).unwrap().to_string();
        // It is for longer problems, too, and so it stays; it serves this one.
        let longer = of(104, OLD);
        assert!(longer.problem.serves(&PlanClass::of(&problem(100)).unwrap()).is_some());
        let file = keep(&folder, &device, longer).unwrap();
        let run = from_row(&by_heuristics);
        let Settled::Row { over, shadows, .. } = settled(&folder, &run) else {
            panic!("no row")
        };
        assert_eq!((over.unwrap().kernel.as_str(), shadows), (OLD, Vec::new()));
        assert_eq!((used(&folder), read(&file).unwrap().rows().count()), (by_heuristics, 2));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
