//! Parameters of a kernel.

use super::pointer::GlobalPtr;
use super::value::Val;
use super::{KernelBuilder, invalid_if};
use crate::inst::{Inst, Object};
use crate::kernel::{Param, ParamKind};
use crate::types::{Element, Literal, Reg, RegClass};

impl KernelBuilder {
    /// Declares a read-only pointer parameter.
    #[track_caller]
    pub fn param_ptr<E: Element>(&self, name: &str) -> GlobalPtr<'_, E> {
        self.param_pointer(name, false)
    }

    /// Declares a pointer parameter that the kernel may write through.
    #[track_caller]
    pub fn param_ptr_mut<E: Element>(&self, name: &str) -> GlobalPtr<'_, E> {
        self.param_pointer(name, true)
    }

    /// Declares a number parameter.
    #[track_caller]
    pub fn param<T: Literal>(&self, name: &str) -> Val<'_, T> {
        let (dst, _) = self.declare_param(name, ParamKind::Value(T::TYPE), T::TYPE.class());
        Val::from_reg(self, dst)
    }

    /// Declares a pointer parameter, and says whether the kernel may write through it.
    #[track_caller]
    pub fn param_pointer<E: Element>(&self, name: &str, writable: bool) -> GlobalPtr<'_, E> {
        let element = E::TYPE;
        let (dst, index) = self.declare_param(name, ParamKind::Pointer { element, writable }, RegClass::B64);
        GlobalPtr::new(Val::from_reg(self, dst), 0, Object::Param(index))
    }

    #[track_caller]
    pub(crate) fn declare_param(&self, name: &str, kind: ParamKind, class: RegClass) -> (Reg, u32) {
        let valid = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        invalid_if!(self, !valid || self.state.borrow().kernel.params.iter().any(|p| p.name == name) =>
            "`{name}` is no name for a parameter here; use letters, digits and `_`, each name once");
        let index = {
            let mut state = self.state.borrow_mut();
            state.kernel.params.push(Param {
                name: name.to_string(),
                kind,
            });
            state.kernel.params.len() as u32 - 1
        };
        let dst = self.reg(class);
        self.emit(Inst::Param { dst, index });
        (dst, index)
    }
}
