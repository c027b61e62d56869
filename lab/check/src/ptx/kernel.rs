//! A kernel of a PTX text as a [`Kernel`], so that the simulator runs it.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use flashcore_ir::inst::{Inst, Object};
use flashcore_ir::kernel::{Kernel, KernelParts, Param, ParamKind};
use flashcore_ir::shared::{BufferId, Ledger, SharedBuffer};
use flashcore_ir::site::{Frame, FrameId, Site, SiteId, SourceLine};
use flashcore_ir::types::{Reg, RegClass, ScalarType};

use super::control::{Item, Test, structured};
use super::objects::{addresses, origins, resolve};
use super::operands::Reader;
use super::statement::{Statement, Written, WrittenInst};
use super::{Body, PtxEntry, PtxError, PtxModule, PtxText, SharedSymbol};

/// What the text does not contain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadAs {
    /// The file's name in findings.
    pub file: String,
    /// Threads a block; if `None`, those that the kernel requires, or the most that it allows.
    pub threads: Option<u32>,
    /// Bytes of dynamic shared memory.
    pub dynamic_shared: u32,
}

/// Bytes of shared memory of a block, on the card that has most.
const MOST_SHARED: u64 = 232_448;

/// Columns of a finding in a PTX text: the instruction's line is all there is.
const COLUMN: u32 = 1;

impl PtxText {
    /// A kernel of the text, if it uses only what the kernel language has: the instructions that
    /// [`Kernel::to_ptx`] prints and what compilers print for the same, 32-bit addresses of shared
    /// symbols, pointers that derive from one parameter each, and jumps that make `if`, `if`/`else`
    /// and loops that are left at their top level.
    ///
    /// Its shared symbols become the buffers of its ledger. An instruction's line is that of `.loc`
    /// if there is one, followed by the line of the text.
    ///
    /// ```
    /// use flashcore_check::ptx::{PtxText, ReadAs};
    /// use flashcore_ir::Kernel;
    /// let kernel = Kernel::build("fill", 32, |k| {
    ///     let out = k.param_ptr_mut::<f32>("out");
    ///     out.offset(k.thread_idx()).store(1.0);
    /// })?;
    /// let options = ReadAs { file: "fill.ptx".to_string(), threads: None, dynamic_shared: 0 };
    /// let again = PtxText::read(&kernel.to_ptx())?.kernel("fill", &options)?;
    /// assert_eq!(again.to_ptx(), kernel.to_ptx());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The first line that is not understood, and why.
    pub fn kernel(&self, name: &str, options: &ReadAs) -> Result<Kernel, PtxError> {
        let refused = |why: &str, line| PtxError::not_understood(format!("`{name}`"), why, line);
        let (entry, body) = self
            .entries()
            .find(|(entry, _)| entry.name == name)
            .ok_or_else(|| refused("the text has no such kernel", 1))?;
        let unknown = |why: &str| refused(why, entry.line);
        let threads = options.threads.or(entry.threads_allowed());
        let threads = threads.ok_or_else(|| unknown("it does not declare its number of threads; give one"))?;
        // Launches of the kernel language have theirs along x, where all threads are counted.
        let most = entry.max_threads.filter(|_| options.threads.is_none());
        if entry.required_threads.or(most).is_some_and(|[_, y, z]| y > 1 || z > 1) {
            return Err(unknown("only blocks along x are supported"));
        }
        if !body.calls.is_empty() {
            return Err(unknown("it calls functions"));
        }
        let cluster = match entry.required_cluster {
            None | Some([1, 1, 1]) => None,
            Some([blocks, 1, 1]) => Some(blocks),
            Some(_) => return Err(unknown("only clusters along x are supported")),
        };
        let ledger = ledger(self.shared_of(body), options.dynamic_shared, entry.line)?;
        let mut reader = Reader {
            registers: HashMap::new(),
            used: RefCell::new(HashMap::new()),
            num_regs: [0; 5],
            threads,
            params: params(entry),
            param_names: (0..)
                .zip(&entry.params)
                .map(|(index, param)| (param.name.as_str(), index))
                .collect(),
            symbols: symbols(&ledger, entry.line)?,
            out: Vec::new(),
            after: Vec::new(),
            bases: HashMap::new(),
        };
        let mut sites = Sites::new(&self.module, &options.file);
        let mut items = read_items(body, &mut reader, &mut sites)?;
        resolve_objects(&mut items, &mut reader, &sites)?;
        let body = structured(&items, &mut || reader.fresh(RegClass::Pred, 1))?;
        let named = |(name, reg): (String, Reg)| (reg, 1, name);
        let names: Vec<(Reg, u32, String)> = reader.used.into_inner().into_iter().map(named).collect();
        Ok(Kernel::of_parts(KernelParts {
            name: entry.name.clone(),
            threads,
            params: reader.params,
            min_blocks_per_sm: entry.min_blocks_per_sm,
            max_registers: entry.max_registers,
            cluster,
            ledger: ledger.clone(),
            body,
            num_regs: reader.num_regs,
            // The simulator finds reads before the first write.
            maybe_unwritten: names.iter().map(|(reg, _, _)| (reg.class, reg.index)).collect(),
            names,
            traces: Vec::new(),
            sites: sites.sites,
            frames: sites.frames,
        }))
    }
}

/// Symbols as buffers of one row, in order of declaration; those that the launch sizes come last.
fn ledger<'a>(
    symbols: impl Iterator<Item = &'a SharedSymbol>,
    dynamic_shared: u32,
    line: u32,
) -> Result<Ledger, PtxError> {
    let mut symbols: Vec<&SharedSymbol> = symbols.collect();
    symbols.sort_by_key(|symbol| symbol.is_dynamic);
    let bytes = |symbol: &SharedSymbol| match symbol.is_dynamic {
        true => u64::from(dynamic_shared),
        false => symbol.bytes,
    };
    let total = symbols.iter().fold(0u64, |end, symbol| {
        let end = end.min(2 * MOST_SHARED);
        end.next_multiple_of(u64::from(symbol.align.max(1)))
            .saturating_add(bytes(symbol))
    });
    PtxError::at_most("bytes of shared memory", total, MOST_SHARED, line)?;
    let mut ledger = Ledger {
        buffers: Vec::new(),
        is_static: !symbols.iter().any(|symbol| symbol.is_dynamic),
    };
    for symbol in symbols {
        let bytes = bytes(symbol) as u32;
        // Findings count bytes in words.
        let declared = symbol.declared.split('[').next().and_then(ScalarType::from_ptx);
        let element = declared.filter(|ty| ty.bytes() > 1 && bytes.is_multiple_of(ty.bytes()));
        let element = match element {
            Some(ScalarType::B64) => ScalarType::U64,
            Some(element) => element,
            None if bytes.is_multiple_of(4) => ScalarType::B32,
            None => ScalarType::E4M3,
        };
        let align = symbol.align.max(1);
        ledger.enter(SharedBuffer::row(&symbol.name, element, bytes, align, SiteId(0)));
    }
    Ok(ledger)
}

/// The buffers of the ledger by name, and their first bytes.
fn symbols(ledger: &Ledger, line: u32) -> Result<HashMap<&str, (Object, u32)>, PtxError> {
    let mut symbols = HashMap::new();
    for (id, buffer) in (0..).zip(&ledger.buffers) {
        let object = Object::Shared(BufferId(id));
        if symbols.insert(buffer.name.as_str(), (object, buffer.offset)).is_some() {
            let (what, name) = ("shared symbol", buffer.name.clone());
            return Err(PtxError::Twice { what, name, line });
        }
    }
    Ok(symbols)
}

/// Parameters as numbers; those that turn out to be pointers are made so later.
fn params(entry: &PtxEntry) -> Vec<Param> {
    let known = |ty: &str| match ty {
        "b32" => Some(ScalarType::U32),
        "b64" => Some(ScalarType::U64),
        _ => ScalarType::from_ptx(ty),
    };
    entry
        .params
        .iter()
        .map(|param| Param {
            name: param.name.strip_prefix("param_").unwrap_or(&param.name).to_string(),
            kind: ParamKind::Value(known(&param.ty).unwrap_or(ScalarType::B64)),
        })
        .collect()
}

struct Sites<'a> {
    /// The paths of the text by number.
    paths: HashMap<u32, &'a str>,
    file: &'static str,
    /// What the last `.loc` said.
    loc: Option<SourceLine>,
    sites: Vec<Site>,
    frames: Vec<Frame>,
}

/// A path with the lifetime of the program, as [`SourceLine`] needs it; each is kept once.
fn kept(path: &str) -> &'static str {
    static KEPT: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut all = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = all.get(path) {
        return known;
    }
    let path = &*Box::leak(path.to_string().into_boxed_str());
    all.insert(path);
    path
}

impl Sites<'_> {
    fn new<'a>(module: &'a PtxModule, file: &str) -> Sites<'a> {
        let mut sites = Sites {
            paths: module
                .files
                .iter()
                .map(|(number, path)| (*number, path.as_str()))
                .collect(),
            file: kept(file),
            loc: None,
            sites: Vec::new(),
            frames: Vec::new(),
        };
        sites.site(1);
        sites
    }

    fn loc(&mut self, file: u32, line: u32, column: u32) {
        self.loc = self.paths.get(&file).map(|path| SourceLine {
            file: kept(path),
            line,
            column,
        });
    }

    fn site(&mut self, line: u32) -> SiteId {
        let line = SourceLine {
            file: self.file,
            line,
            column: COLUMN,
        };
        let frame = self.loc.map(|called_at| {
            self.frames.push(Frame {
                verb: "PTX",
                called_at,
                parent: None,
            });
            FrameId(self.frames.len() as u32 - 1)
        });
        self.sites.push(Site { line, frame });
        SiteId(self.sites.len() as u32 - 1)
    }

    fn line_of(&self, site: SiteId) -> u32 {
        self.sites[site.0 as usize].line.line
    }
}

fn read_items(body: &Body, reader: &mut Reader<'_>, sites: &mut Sites<'_>) -> Result<Vec<Item>, PtxError> {
    let mut items = Vec::new();
    for statement in &body.statements {
        match statement {
            Statement::Label(name) => items.push(Item::Label(name.clone())),
            Statement::Loc { file, line, column } => sites.loc(*file, *line, *column),
            Statement::Registers { ty, name, count } => declare(reader, ty, name, *count),
            Statement::Inst(inst) => {
                let site = sites.site(inst.line);
                read_inst(inst, reader, site, &mut items)?;
            }
        }
    }
    // The last return is the end of the kernel.
    if let Some(Item::Jump {
        to: None, test: None, ..
    }) = items.last()
    {
        items.pop();
    }
    Ok(items)
}

fn declare(reader: &mut Reader<'_>, ty: &str, name: &str, count: Option<u32>) {
    let class = match ty {
        "u16" | "s16" => Some(RegClass::B16),
        _ => ScalarType::from_ptx(ty).map(ScalarType::class),
    };
    // Registers of other types are refused where they are used.
    let Some(class) = class else { return };
    let first = reader.fresh(class, count.unwrap_or(1));
    reader.registers.insert(name.to_string(), (first, count));
}

fn read_inst(inst: &WrittenInst, reader: &mut Reader<'_>, site: SiteId, items: &mut Vec<Item>) -> Result<(), PtxError> {
    let test = match &inst.guard {
        None => None,
        Some(guard) => Some(Test {
            pred: reader.reg_like(inst, &Written::Name(guard.pred.clone()), RegClass::Pred)?,
            negated: guard.negated,
        }),
    };
    let jump = |to: Option<String>, uniform| Item::Jump {
        to,
        test,
        uniform,
        site,
        line: inst.line,
    };
    match (inst.opcode.as_str(), inst.operands.first()) {
        ("ret" | "ret.uni" | "exit", None) => items.push(jump(None, false)),
        (op @ ("bra" | "bra.uni"), Some(Written::Name(label))) => {
            items.push(jump(Some(label.clone()), op == "bra.uni"));
        }
        ("trap", None) => match test {
            Some(Test { pred, negated: false }) => {
                let (inst, guard) = (Inst::TrapIf { pred }, None);
                items.push(Item::Inst { inst, guard, site });
            }
            _ => return Err(super::operands::error(inst, "only `@p trap` is supported")),
        },
        _ => {
            reader.decode(inst)?;
            let (opcode, guard) = (inst, test);
            for inst in reader.out.drain(..).chain(reader.after.drain(..)) {
                if let Some(why) = inst.impossible_among(reader.threads) {
                    return Err(super::operands::error(opcode, &why));
                }
                items.push(Item::Inst { inst, guard, site });
            }
        }
    }
    Ok(())
}

/// Gives addresses their objects, and makes pointers of the parameters that they stem from.
fn resolve_objects(items: &mut [Item], reader: &mut Reader<'_>, sites: &Sites<'_>) -> Result<(), PtxError> {
    let insts = items.iter().filter_map(|item| match item {
        Item::Inst { inst, .. } => Some(inst),
        _ => None,
    });
    let origins = origins(&insts.collect::<Vec<&Inst>>(), &reader.bases);
    for item in items.iter_mut() {
        let Item::Inst { inst, site, .. } = item else { continue };
        if let Err(why) = resolve(inst, &origins) {
            let what = format!("`{}`", flashcore_ir::ptx::mnemonic(inst));
            return Err(PtxError::not_understood(what, why, sites.line_of(*site)));
        }
        let element = match inst {
            Inst::Ld { dst, .. } if dst.class != RegClass::B64 => dst.class.scalar(),
            _ => ScalarType::B32,
        };
        for (address, _, access) in addresses(inst) {
            let Object::Param(index) = address.object else { continue };
            let Some(param) = reader.params.get_mut(index as usize) else {
                continue;
            };
            let (element, was_writable) = match param.kind {
                ParamKind::Pointer { element, writable } => (element, writable),
                _ => (element, false),
            };
            let writable = was_writable || access.writes();
            param.kind = ParamKind::Pointer { element, writable };
        }
    }
    Ok(())
}
