//! Direct calls: the functions that a kernel calls stand in it.

use std::collections::HashMap;

use crate::entries::SharedSymbol;
use crate::error::PtxError;
use rustc_hash::FxHashSet;

use crate::body::{Function, Instruction, Registers};
use crate::module::Module;
use crate::operand::{Operand, Register, callee};

/// Instructions of a kernel with all that it calls.
const MOST_INSTRUCTIONS: u64 = 1 << 20;
/// Its registers, and its calls.
const MOST_REGISTERS: u64 = 1 << 21;
const MOST_CALLS: u64 = 1 << 14;

impl Module {
    /// A kernel with the bodies of the functions that it calls in place of the calls. Parameters of calls have a name
    /// for each call. Calls of functions without a body, and of those that call themselves, stay.
    ///
    /// # Errors
    /// Calls deeper than are followed, or more instructions than are read.
    pub fn inlined(&self, kernel: &Function) -> Result<Function, PtxError> {
        let all = self.with_callees(kernel)?;
        let mut inlining = Inlining {
            module: self,
            by_name: self.functions.iter().map(|f| (f.name.as_str(), f)).collect(),
            recursive: self.recursive(&all),
            out: Function {
                name: kernel.name.clone(),
                ..Function::default()
            },
            registers: 0,
            calls: 0,
        };
        inlining.body(kernel, &HashMap::new(), "", None)?;
        Ok(inlining.out)
    }
}

struct Inlining<'a> {
    module: &'a Module,
    by_name: HashMap<&'a str, &'a Function>,
    recursive: FxHashSet<&'a str>,
    out: Function,
    registers: u32,
    calls: u32,
}

/// What a call has in parentheses before the function's name and after it.
fn lists(inst: &Instruction) -> [&[Operand]; 2] {
    let mut lists: [&[Operand]; 2] = [&[], &[]];
    let mut after = 0;
    for operand in &inst.operands {
        match operand {
            Operand::Symbol(..) => after = 1,
            Operand::List(all) => lists[after] = all,
            _ => {}
        }
    }
    lists
}

impl<'a> Inlining<'a> {
    /// Adds the body of a function, whose names of parameters stand for others. A return goes to a label, if there is
    /// one.
    fn body(
        &mut self,
        function: &'a Function,
        parameters: &HashMap<String, String>,
        suffix: &str,
        end: Option<u32>,
    ) -> Result<(), PtxError> {
        let (registers, labels) = (self.registers, self.out.labels.len() as u32);
        let places = self.out.places.len() as u32;
        for declared in &function.registers {
            self.registers = self
                .registers
                .max(registers + declared.first.0 + declared.count.unwrap_or(1));
            self.out.registers.push(Registers {
                first: Register(registers + declared.first.0),
                ..declared.clone()
            });
        }
        self.out.places.extend(function.places.iter().cloned().map(|mut place| {
            place.inlined_at = place.inlined_at.map(|outer| outer + places);
            place
        }));
        // A function that is called twice has its shared memory once.
        let is_new = |known: &[SharedSymbol], symbol: &SharedSymbol| known.iter().all(|it| it.name != symbol.name);
        for symbol in &function.shared {
            if suffix.is_empty() || is_new(&self.out.shared, symbol) {
                self.out.shared.push(symbol.clone());
            }
        }
        self.out
            .local
            .extend(function.local.iter().cloned().map(|mut variable| {
                variable.name += suffix;
                variable
            }));
        self.out.named.extend(function.named.iter().cloned());
        self.out.labels.resize(self.out.labels.len() + function.labels.len(), 0);
        let locals: FxHashSet<&str> = function.local.iter().map(|variable| variable.name.as_str()).collect();
        let mut order: Vec<u32> = (0..function.labels.len() as u32).collect();
        order.sort_by_key(|&label| function.labels[label as usize]);
        let mut order = order.into_iter().peekable();
        for (number, inst) in (0u32..).zip(&function.instructions) {
            while let Some(label) = order.next_if(|&label| function.labels[label as usize] == number) {
                self.out.labels[(labels + label) as usize] = self.out.instructions.len() as u32;
            }
            let form = self.module.forms()[inst.form as usize].as_ref().ok();
            let (name, is_param) = form.map_or(("", false), |form| (form.name(), form.has("param")));
            let rename = |name: &str| match parameters.get(name) {
                Some(outer) => outer.clone(),
                None if is_param || locals.contains(name) => format!("{name}{suffix}"),
                None => name.to_string(),
            };
            let guard = inst
                .guard
                .map(|(register, negated)| (Register(register.0 + registers), negated));
            let place = inst.place.map(|place| place + places);
            let line = inst.line;
            let add = |form: u32, guard, operands| Instruction {
                guard,
                form,
                operands,
                line,
                place,
            };
            let count = self.out.instructions.len() as u64;
            PtxError::at_most(
                "instructions with those of called functions",
                count,
                MOST_INSTRUCTIONS,
                line,
            )?;
            let callee = self.callee(name, inst);
            if let Some(callee) = callee {
                self.calls += 1;
                PtxError::at_most("calls", self.calls.into(), MOST_CALLS, line)?;
                PtxError::at_most(
                    "registers with those of called functions",
                    self.registers.into(),
                    MOST_REGISTERS,
                    line,
                )?;
                let inner = format!("#{}", self.calls);
                let of_call = |operand: &Operand| match operand {
                    Operand::Symbol(name, _) => match parameters.get(name) {
                        Some(outer) => outer.clone(),
                        None => format!("{name}{suffix}"),
                    },
                    _ => String::new(),
                };
                let [results, arguments] = lists(inst);
                let formal = callee
                    .results
                    .iter()
                    .zip(results)
                    .chain(callee.parameters.iter().zip(arguments));
                let names = formal
                    .map(|(formal, actual)| (formal.clone(), of_call(actual)))
                    .collect();
                let after = self.out.labels.len() as u32;
                self.out.labels.push(0);
                if let Some((register, negated)) = guard {
                    let over = vec![Operand::Label(after)];
                    self.out
                        .instructions
                        .push(add(self.module.bra, Some((register, !negated)), over));
                }
                self.body(callee, &names, &inner, Some(after))?;
                self.out.labels[after as usize] = self.out.instructions.len() as u32;
                continue;
            }
            if let (Some(end), "ret") = (end, name) {
                // The last one falls through.
                if number as usize + 1 < function.instructions.len() || guard.is_some() {
                    self.out
                        .instructions
                        .push(add(self.module.bra, guard, vec![Operand::Label(end)]));
                }
                continue;
            }
            let is_call = name == "call";
            let operands = inst.operands.iter().map(|operand| {
                let of_call = |name: &str| match parameters.get(name) {
                    Some(outer) => outer.clone(),
                    None => format!("{name}{suffix}"),
                };
                match operand {
                    // Names of parameters, but not that of the function.
                    Operand::List(all) if is_call => Operand::List(
                        all.iter()
                            .map(|item| match item {
                                Operand::Symbol(name, offset) => Operand::Symbol(of_call(name), *offset),
                                item => item.clone(),
                            })
                            .collect(),
                    ),
                    operand => renamed(operand, registers, labels, &rename),
                }
            });
            let operands = operands.collect();
            self.out.instructions.push(add(inst.form, guard, operands));
        }
        for label in order {
            self.out.labels[(labels + label) as usize] = self.out.instructions.len() as u32;
        }
        Ok(())
    }

    /// The function that an instruction calls, if its body can stand there.
    fn callee(&self, name: &str, inst: &Instruction) -> Option<&'a Function> {
        let callee = callee(&inst.operands).filter(|callee| name == "call" && !self.recursive.contains(callee))?;
        self.by_name.get(callee).copied()
    }
}

/// An operand with its registers and labels counted from others.
fn renamed(operand: &Operand, registers: u32, labels: u32, rename: &impl Fn(&str) -> String) -> Operand {
    let inner = |operand: &Operand| renamed(operand, registers, labels, rename);
    match operand {
        Operand::Register(register) => Operand::Register(Register(register.0 + registers)),
        Operand::Not(register) => Operand::Not(Register(register.0 + registers)),
        Operand::Label(label) => Operand::Label(label + labels),
        Operand::Symbol(name, offset) => Operand::Symbol(rename(name), *offset),
        Operand::Memory(base, offset) => Operand::Memory(Box::new(inner(base)), *offset),
        Operand::Tensor(all) => Operand::Tensor(all.iter().map(inner).collect()),
        Operand::List(all) => Operand::List(all.iter().map(inner).collect()),
        Operand::Pair(both) => Operand::Pair(Box::new([inner(&both[0]), inner(&both[1])])),
        Operand::Special(_) | Operand::Integer(_) | Operand::Float { .. } | Operand::Sink => operand.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inlined(body: &str) -> Result<(Module, Function), PtxError> {
        let text = format!(
            ".version 8.0 .target sm_80 .global .b32 counts[3] = {{1, 2, -1}};
             .func (.param .b32 out) twice(.param .b32 in) {{ .reg .b32 %r<3>; .reg .pred %p<1>;
             ld.param.b32 %r1, [in]; @%p0 ret; add.s32 %r2, %r1, %r1; st.param.b32 [out], %r2; ret; }}
             .func again(.param .b32 n) {{ call again, (n); ret; }}
             .entry k() {{ .reg .b32 %r<3>; .param .b32 p; .param .b32 q; {body} ret; }}"
        );
        let module = Module::read(&text)?;
        let function = module.inlined(&module.kernels[0])?;
        Ok((module, function))
    }

    #[test]
    fn calls_are_replaced_by_bodies() {
        let (module, function) = inlined("st.param.b32 [p], %r1; call (q), twice, (p); call (q), twice, (q);").unwrap();
        let names = function
            .instructions
            .iter()
            .map(|inst| module.forms()[inst.form as usize].as_ref().unwrap().name());
        let body = ["ld", "bra", "add", "st"];
        assert_eq!(
            names.collect::<Vec<_>>(),
            [&["st"][..], &body, &body, &["ret"]].concat()
        );
        // Both bodies have registers of their own, and end where they are left early.
        assert_eq!(
            function.registers.iter().map(|it| it.first.0).collect::<Vec<_>>(),
            [0, 3, 6, 7, 10]
        );
        let Operand::Label(first) = function.instructions[2].operands[0] else {
            panic!()
        };
        assert_eq!(function.labels[first as usize], 5);
        let stored = |at: usize| function.instructions[at].operands[0].clone();
        assert_eq!(
            stored(4),
            Operand::Memory(Box::new(Operand::Symbol("q".to_string(), 0)), 0)
        );
    }

    #[test]
    fn calls_of_themselves_stay() {
        let (module, function) = inlined("call again, (p);").unwrap();
        let form = module.forms()[function.instructions[0].form as usize].as_ref().unwrap();
        assert_eq!((form.name(), function.instructions.len()), ("call", 2));
    }

    #[test]
    fn variables_have_their_first_values() {
        let (module, _) = inlined("").unwrap();
        assert_eq!(module.variables[0].bytes, [1, 0, 0, 0, 2, 0, 0, 0, 255, 255, 255, 255]);
    }
}
