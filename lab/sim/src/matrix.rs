//! Matrices of `mma` and `wmma` that the kernel language has not. Sums are rounded once.

use flashcore_ir::Operand;

use crate::access::{bits, set};
use crate::cluster::Cluster;
use crate::float;
use crate::interpreter::Stop;
use crate::registers::FULL;
use crate::report::Class;
use crate::text::cold::{Cold, What};
use crate::text::matrix::{Fragment, Move, Product};
use crate::text::numbers::{self, Ty};
use crate::warp::Warp;

/// The bits of a sum in a type.
pub(crate) fn rounded(element: Ty, value: f64, saturates: bool) -> u64 {
    match element {
        Ty::Half(_) => float::f64_to_f16(value).into(),
        Ty::F64 => value.to_bits(),
        Ty::Int(..) if saturates => u64::from(value as i32 as u32),
        Ty::Int(..) => u64::from(value as i64 as u32),
        _ => float::result(value as f32).into(),
    }
}

impl Cluster<'_> {
    fn other_layout(&self) -> bool {
        self.machine.options.permuted_fragments
    }

    /// The elements of a matrix, a row after the other.
    pub(crate) fn matrix(&self, warp: &Warp, fragment: &Fragment, operands: &[Operand]) -> Vec<f64> {
        let [rows, columns] = fragment.dims();
        let mut matrix = vec![0.0; (rows * columns) as usize];
        let (each, width) = (fragment.element.in_register(), 8 * fragment.element.bytes());
        for (register, operand) in (0..).zip(operands) {
            let bits = bits(self.machine, warp, *operand);
            for (lane, bits) in (0..).zip(bits) {
                for element in 0..each {
                    let (row, column) = fragment.place(lane, register, element, self.other_layout());
                    matrix[(row * columns + column) as usize] =
                        numbers::value(bits >> (width * element), fragment.element, false);
                }
            }
        }
        matrix
    }

    pub(crate) fn product_of(&mut self, warp: &mut Warp, pc: u32, cold: &Cold, product: &Product) {
        self.check_members(warp, pc, FULL, "mma");
        let (a_end, b_end) = (
            product.a.registers as usize,
            (product.a.registers + product.b.registers) as usize,
        );
        let a = self.matrix(warp, &product.a, &cold.reads[..a_end]);
        let b = self.matrix(warp, &product.b, &cold.reads[a_end..b_end]);
        let mut sum = self.matrix(warp, &product.c, &cold.reads[b_end..]);
        let [m, n, k] = product.a.shape.map(|size| size as usize);
        for (row, sums) in sum.chunks_exact_mut(n).enumerate() {
            for (column, sum) in sums.iter_mut().enumerate() {
                for step in 0..k {
                    // Of several products the matrices stand below each other.
                    let b = b[(row / m * k + step) * n + column];
                    *sum = numbers::fma(a[row * k + step], b, *sum, Ty::F64, product.mode);
                }
            }
        }
        let (each, width) = (product.d.element.in_register(), 8 * product.d.element.bytes());
        for (register, &reg) in (0..).zip(&cold.writes) {
            let packed = |lane: usize| {
                (0..each).fold(0, |all, element| {
                    let (row, column) = product.d.place(lane as u32, register, element, self.other_layout());
                    let value = sum[row as usize * n + column as usize];
                    all | rounded(product.d.element, value, product.saturates) << (width * element)
                })
            };
            set(self.machine, warp, reg, warp.active, &std::array::from_fn(packed));
        }
    }

    /// `movmatrix`: of 8 x 8 elements of 16 bits, two in each lane, the transposed matrix.
    pub(crate) fn transpose(&mut self, warp: &mut Warp, pc: u32, cold: &Cold) {
        self.check_members(warp, pc, FULL, "movmatrix");
        let from = bits(self.machine, warp, cold.reads[0]);
        let element = |row: usize, column: usize| from[4 * row + column / 2] >> (16 * (column % 2)) & 0xffff;
        let to = std::array::from_fn(|lane| {
            let (row, column) = (lane / 4, lane % 4 * 2);
            element(column, row) | element(column + 1, row) << 16
        });
        set(self.machine, warp, cold.writes[0], warp.active, &to);
    }

    /// Moves a matrix, an element of each lane after the other.
    pub(crate) fn move_matrix(&mut self, warp: &mut Warp, pc: u32, cold: &Cold, movement: &Move) -> Option<Stop> {
        self.check_members(warp, pc, FULL, "wmma");
        let (machine, is_other) = (self.machine, self.other_layout());
        let fragment = &movement.fragment;
        let (element, access) = (fragment.element, &movement.access);
        let [base, stride] = [0, 1].map(|at| bits(machine, warp, cold.reads[at]));
        let [address, scratch] = movement.scratch;
        let mut plain = Cold {
            what: What::Access(*access),
            class: Class::Structure,
            writes: Vec::new(),
            reads: vec![Operand::Reg(address)],
        };
        if access.writes {
            plain.reads.push(Operand::Reg(scratch))
        } else {
            plain.writes.push(scratch)
        }
        let (each, width) = (element.in_register(), 8 * element.bytes());
        for register in 0..fragment.registers {
            let at = register as usize;
            let mut packed = if access.writes {
                bits(machine, warp, cold.reads[2 + at])
            } else {
                [0; 32]
            };
            for part in 0..each {
                let addresses = std::array::from_fn(|lane| {
                    let (row, column) = fragment.place(lane as u32, register, part, is_other);
                    let [row, column] = [row, column].map(u64::from);
                    let stride = stride[lane] & 0xffff_ffff;
                    let number = if movement.is_row_major {
                        row * stride + column
                    } else {
                        column * stride + row
                    };
                    base[lane].wrapping_add(number * u64::from(element.bytes()))
                });
                set(machine, warp, address, warp.active, &addresses);
                if access.writes {
                    let value = packed.map(|bits| bits >> (width * part));
                    set(machine, warp, scratch, warp.active, &value);
                }
                if let Some(stop) = self.access(warp, pc, &plain, access) {
                    return Some(stop);
                }
                if !access.writes {
                    let loaded = bits(machine, warp, Operand::Reg(scratch));
                    for (packed, loaded) in packed.iter_mut().zip(loaded) {
                        *packed |= loaded << (width * part);
                    }
                }
            }
            if !access.writes {
                set(machine, warp, cold.writes[at], warp.active, &packed);
            }
        }
        None
    }
}
