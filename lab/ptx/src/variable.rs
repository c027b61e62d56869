//! Variables of a module with their first values.

use crate::entries::SharedSymbol;
use crate::error::PtxError;
use crate::words::{Word, Words};

use crate::declared::DeclaredVariable;
use crate::names::number;
use crate::operand::Operand;

/// A variable in global or constant memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name, type and size.
    pub symbol: SharedSymbol,
    /// Whether it is constant.
    pub is_constant: bool,
    /// Its bytes before a launch.
    pub bytes: Vec<u8>,
    /// Where addresses of other variables stand in them: the first byte, the name, what is added.
    pub addresses: Vec<(usize, String, i64)>,
}

/// Bytes of all variables.
const MOST_BYTES: u64 = 1 << 28;

impl Variable {
    /// Reads a variable; `before` bytes are those of others.
    pub(crate) fn read(text: &str, declared: &DeclaredVariable, before: &mut u64) -> Result<Variable, PtxError> {
        let symbol = declared.symbol.clone();
        *before = before.saturating_add(symbol.bytes);
        PtxError::at_most("bytes of variables", *before, MOST_BYTES, symbol.line)?;
        let mut variable = Variable {
            bytes: vec![0; symbol.bytes as usize],
            addresses: Vec::new(),
            is_constant: declared.is_constant,
            symbol,
        };
        let Some(range) = declared.initial.clone() else {
            return Ok(variable);
        };
        let ty = variable.symbol.declared.split('[').next().unwrap_or_default();
        let ty = ty.rsplit('.').next().unwrap_or_default();
        let size = ty.get(1..).and_then(|bits| bits.parse::<usize>().ok()).unwrap_or(8) / 8;
        if size > 8 {
            return Err(PtxError::not_understood(
                format!("variable `{}`", variable.symbol.name),
                "values of more than 8 bytes are not read",
                variable.symbol.line,
            ));
        }
        let is_f32 = ty == "f32";
        let mut words = Words::of(&text[range], variable.symbol.line)?;
        let mut at = 0;
        while let Some(word) = words.peek() {
            let is_negative = *word == Word::Mark('-');
            words.at += usize::from(is_negative);
            match words.peek() {
                Some(Word::Number(text)) => {
                    let Some(value) = number(text) else {
                        return words.wrong("a number");
                    };
                    let bits = match value {
                        Operand::Integer(bits) if is_negative => bits.wrapping_neg(),
                        Operand::Integer(bits) => bits,
                        Operand::Float { bits, width: 64 } if is_f32 => {
                            u64::from((f64::from_bits(bits) as f32).to_bits())
                        }
                        Operand::Float { bits, .. } => bits,
                        _ => 0,
                    };
                    words.at += 1;
                    if let Some(place) = variable.bytes.get_mut(at..at + size) {
                        place.copy_from_slice(&bits.to_le_bytes()[..size]);
                    }
                    at += size;
                }
                Some(Word::Name(name)) if *name != "generic" => {
                    let name = name.to_string();
                    words.at += 1;
                    let offset = if words.takes('+') { words.number()? as i64 } else { 0 };
                    variable.addresses.push((at, name, offset));
                    at += size;
                }
                // `generic(name)`, braces of rows, commas.
                _ => words.at += 1,
            }
        }
        Ok(variable)
    }
}
