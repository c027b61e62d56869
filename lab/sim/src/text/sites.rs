//! The lines of a text, and those of the sources that it names.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use flashcore_ir::site::{Frame, FrameId, Site, SiteId, SourceLine};
use flashcore_ptx::{Function, Module};

/// A string that lives as long as the program, as [`SourceLine`] needs it; each is kept once.
pub(super) fn kept(text: &str) -> &'static str {
    static KEPT: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut all = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = all.get(text) {
        return known;
    }
    let text = &*Box::leak(text.to_string().into_boxed_str());
    all.insert(text);
    text
}

/// The sites of a function's instructions, as they are asked for.
pub(super) struct Sites<'a> {
    module: &'a Module,
    function: &'a Function,
    /// The paths of the text by number.
    paths: HashMap<u32, &'static str>,
    file: &'static str,
    pub(super) sites: Vec<Site>,
    pub(super) frames: Vec<Frame>,
}

impl<'a> Sites<'a> {
    pub(super) fn of(module: &'a Module, function: &'a Function, file: &str) -> Sites<'a> {
        let files = module.declared.files.iter();
        Sites {
            module,
            function,
            paths: files.map(|(number, path)| (*number, kept(path))).collect(),
            file: kept(file),
            sites: Vec::new(),
            frames: Vec::new(),
        }
    }

    /// The line of `.loc` if there is one, followed by that of the text.
    pub(super) fn site(&mut self, at: usize) -> SiteId {
        let inst = &self.function.instructions[at];
        let line = SourceLine {
            file: self.file,
            line: inst.line,
            column: 1,
        };
        let (file, user, column) = self.module.line_of(self.function, inst);
        let frame = file.and_then(|file| self.paths.get(&file)).map(|&file| {
            self.frames.push(Frame {
                verb: "PTX",
                called_at: SourceLine {
                    file,
                    line: user,
                    column,
                },
                parent: None,
            });
            FrameId(self.frames.len() as u32 - 1)
        });
        self.sites.push(Site { line, frame });
        SiteId(self.sites.len() as u32 - 1)
    }
}
