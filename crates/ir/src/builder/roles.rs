//! Warp roles: what the warps of a block do once they part, as one branch.

use super::value::Val;
use super::{KernelBuilder, invalid_if};
use crate::inst::Inst;
use crate::kernel::Node;
use crate::target::Target;

/// The work of some of a block's warps.
pub struct Role<'a> {
    name: &'static str,
    warps: u32,
    registers: Option<u32>,
    body: Box<dyn FnOnce() + 'a>,
}

impl<'a> Role<'a> {
    /// The next `warps` warps of the block do `body`.
    pub fn new(name: &'static str, warps: u32, body: impl FnOnce() + 'a) -> Role<'a> {
        Role {
            name,
            warps,
            registers: None,
            body: Box::new(body),
        }
    }

    /// Gives each of its threads this many registers (`setmaxnreg`), which takes whole warpgroups.
    pub fn registers(mut self, registers: u32) -> Role<'a> {
        self.registers = Some(registers);
        self
    }
}

impl KernelBuilder {
    /// Splits the block's warps for the rest of the kernel: each role takes the next warps, in
    /// order, and together they take all.
    ///
    /// Roles with a number of registers divide the block's pool, which is what the launch gives
    /// each thread, times the threads. Roles that need more do not build.
    ///
    /// ```
    /// use flashcore_ir::{Kernel, Role};
    /// let kernel = Kernel::build("roles", 384, |k| {
    ///     k.min_blocks_per_sm(1);
    ///     k.roles(vec![
    ///         Role::new("producer", 4, || { /* copies */ }).registers(24),
    ///         Role::new("consumer", 8, || { /* products */ }).registers(240),
    ///     ]);
    /// })?;
    /// assert!(kernel.to_ptx().contains("setmaxnreg.inc.sync.aligned.u32 240"));
    /// # Ok::<(), flashcore_ir::BuildErrors>(())
    /// ```
    #[track_caller]
    pub fn roles(&self, roles: Vec<Role<'_>>) {
        let threads = self.threads();
        let taken: u32 = roles.iter().map(|role| role.warps).sum();
        invalid_if!(self, 32 * taken != threads || roles.iter().any(|role| role.warps == 0) =>
            "roles of {taken} warps together; the block has {}, and each role takes at least one", threads / 32);
        self.check_registers(&roles);
        self.role_of(self.warp_idx(), 0, roles.into_iter());
    }

    #[track_caller]
    fn role_of<'a>(&self, warp: Val<'_, u32>, first: u32, mut roles: std::vec::IntoIter<Role<'a>>) {
        let Some(role) = roles.next() else { return };
        if roles.len() == 0 {
            self.play(role);
            return;
        }
        let end = first + role.warps;
        let condition = self.condition(warp.lt(end).uniform());
        let site = self.site();
        self.open_block();
        self.play(role);
        let then = self.close_block();
        self.open_block();
        self.role_of(warp, end, roles);
        let otherwise = self.close_block();
        self.push(Node::branch(condition, then, otherwise, site));
    }

    #[track_caller]
    fn play(&self, role: Role<'_>) {
        if let Some(regs) = role.registers {
            let launch = self.launch_registers();
            if regs != launch {
                let raise = regs > launch;
                self.emit(Inst::SetMaxRegs { regs, raise });
            }
        }
        (role.body)();
    }

    /// Registers a thread at launch.
    fn launch_registers(&self) -> u32 {
        let blocks = self.state.borrow().kernel.min_blocks_per_sm.unwrap_or(1);
        Target::Sm90a.limits().launch_registers(blocks * self.threads())
    }

    #[track_caller]
    fn check_registers(&self, roles: &[Role<'_>]) {
        if roles.iter().all(|role| role.registers.is_none()) {
            return;
        }
        // Without it the compiler may aim at any number, and the pool is another.
        invalid_if!(self, self.state.borrow().kernel.min_blocks_per_sm.is_none() =>
            "roles with registers in a kernel without `min_blocks_per_sm`, by which the compiler sizes the pool of \
             registers");
        let mut needed = 0;
        for role in roles {
            match role.registers {
                Some(registers) if role.warps.is_multiple_of(4) => needed += 32 * role.warps * registers,
                Some(_) => self.invalid(format!(
                    "role `{}` of {} warps asks for registers, which are set by the warpgroup of 4",
                    role.name, role.warps
                )),
                None => self.invalid(format!(
                    "role `{}` does not say how many registers it needs, though others do",
                    role.name
                )),
            }
        }
        let launch = self.launch_registers();
        let pool = launch * self.threads();
        if needed > pool {
            let parts: Vec<String> = roles
                .iter()
                .map(|r| format!("{} × {} for `{}`", 32 * r.warps, r.registers.unwrap_or(0), r.name))
                .collect();
            self.invalid(format!(
                "roles need {needed} registers ({}); the block's pool is {} threads × {launch} = {pool}",
                parts.join(", "),
                self.threads()
            ));
        }
    }
}
