//! Modules: compiling PTX with the driver, and what it says about the result.

use std::ffi::{CStr, CString, c_void};
use std::ptr;
use std::time::Instant;

use super::{CallResult, Driver, call};
use crate::sys::{CUfunction, CUmodule, is_outside, jit_option as option};

/// Bytes for each of the compiler's two logs. A verbose log takes about 300 B a kernel.
const LOG_BYTES: usize = 64 * 1024;

#[derive(Debug)]
pub(crate) struct JitOutcome {
    pub(crate) module: CallResult<CUmodule>,
    pub(crate) info_log: String,
    pub(crate) error_log: String,
    /// A log filled its buffer, so its end is missing.
    pub(crate) truncated: bool,
    /// The compiler's own time; 0 where the module came from the driver's cache.
    pub(crate) compile_ms: f32,
    /// Time of the whole call.
    pub(crate) load_ms: f64,
}

/// A zero-terminated buffer as text, and whether the text fills the buffer.
pub(super) fn text(buffer: &[u8]) -> (String, bool) {
    let end = buffer.iter().position(|&byte| byte == 0).unwrap_or(buffer.len());
    (
        String::from_utf8_lossy(&buffer[..end]).into_owned(),
        end + 1 >= buffer.len(),
    )
}

/// A number where the driver expects a pointer-sized option value.
fn number(value: u32) -> *mut c_void {
    ptr::without_provenance_mut(value as usize)
}

impl Driver {
    /// Compiles and loads PTX into the current context (`cuModuleLoadDataEx`; never `cuLink*`,
    /// which compiles relocatable code: wgmma is serialised and setmaxnreg ignored).
    pub(crate) fn module_load(&self, ptx: &CStr, line_info: bool) -> JitOutcome {
        let mut info = vec![0u8; LOG_BYTES];
        let mut error = vec![0u8; LOG_BYTES];
        let mut options = vec![
            (option::CU_JIT_WALL_TIME, ptr::null_mut()),
            (option::CU_JIT_INFO_LOG_BUFFER, info.as_mut_ptr().cast()),
            (option::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, number(LOG_BYTES as u32)),
            (option::CU_JIT_ERROR_LOG_BUFFER, error.as_mut_ptr().cast()),
            (option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, number(LOG_BYTES as u32)),
            (option::CU_JIT_LOG_VERBOSE, number(1)),
        ];
        if line_info {
            options.push((option::CU_JIT_GENERATE_LINE_INFO, number(1)));
        }
        let (mut options, mut values): (Vec<u32>, Vec<*mut c_void>) = options.into_iter().unzip();

        let mut module = ptr::null_mut();
        let count = options.len() as u32;
        let started = Instant::now();
        // SAFETY: rule 2 of `raw`; `options` and `values` have `count` entries each, the PTX ends
        // in a zero byte, and both log buffers are as long as their sizes say and live until this
        // function returns.
        let code = self.in_mode(is_outside::cuModuleLoadDataEx, || unsafe {
            (self.table.cuModuleLoadDataEx)(
                &mut module,
                ptx.as_ptr().cast(),
                count,
                options.as_mut_ptr(),
                values.as_mut_ptr(),
            )
        });
        let load_ms = started.elapsed().as_secs_f64() * 1e3;
        // The driver leaves a float in the low half of the option's slot.
        let compile_ms = f32::from_bits(values[0].addr() as u32);

        let (info_log, info_full) = text(&info);
        let (error_log, error_full) = text(&error);
        let module = self
            .check("cuModuleLoadDataEx", code, || {
                format!("image={} B of PTX, options={count}", ptx.to_bytes().len())
            })
            .map(|()| module);
        JitOutcome {
            module,
            info_log,
            error_log,
            truncated: info_full || error_full,
            compile_ms,
            load_ms,
        }
    }

    pub(crate) fn module_function(&self, module: CUmodule, name: &CString) -> CallResult<CUfunction> {
        let mut function = ptr::null_mut();
        let what = format_args!("module={module:p}, name={name:?}");
        // SAFETY: rules 1 and 2 of `raw`.
        unsafe { call!(self.cuModuleGetFunction(&mut function, module, name.as_ptr()), "{what}")? };
        Ok(function)
    }

    /// Loads the function's code now, not at its first launch; nothing on drivers before 12.4.
    pub(crate) fn function_load(&self, function: CUfunction) -> CallResult<()> {
        let Some(call) = self.table.cuFuncLoad else {
            return Ok(());
        };
        // SAFETY: rule 1 of `raw`.
        let code = self.in_mode(is_outside::cuFuncLoad, || unsafe { call(function) });
        self.check("cuFuncLoad", code, || format!("function={function:p}"))
    }
}

#[cfg(test)]
mod tests {
    use super::text;

    #[test]
    fn logs_end_at_their_zero_byte_and_a_full_one_is_noticed() {
        assert_eq!(text(b"abc\0\0\0\0"), ("abc".to_string(), false));
        assert_eq!(text(b"\0\0"), (String::new(), false));
        assert_eq!(text(b"abcdef\0"), ("abcdef".to_string(), true));
        assert_eq!(text(b"abcdefg"), ("abcdefg".to_string(), true));
    }
}
