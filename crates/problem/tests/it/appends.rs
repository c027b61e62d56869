//! Invalid appends.

use flashcore_problem::{Append, AppendPlace, DType, Layout, ProblemError};

/// Sizes are public fields: none may overflow before it is checked.
#[test]
fn appends_that_are_too_large() {
    let (new, cache) = (Layout::bshd([1, 1, 1, 64]), Layout::bshd([2, 16, 1, 64]));
    let paged = Append::to_pages(DType::F16, [new, new], [cache, cache], 2);
    assert!(paged.check().is_ok());
    let table = |tables, max_pages| Append {
        place: AppendPlace::Paged { tables, max_pages },
        batch_idx: true,
        ..paged
    };
    for append in [table(usize::MAX, 2), table(1 << 31, 2), table(2, 1 << 31)] {
        let error = append.check().unwrap_err().to_string();
        assert!(
            error.starts_with("a size of new rows, of the cache or of the block table"),
            "{error}"
        );
    }
    let long = Layout {
        shape: [1, usize::MAX, 1, 64],
        ..new
    };
    let many = Append {
        k_new: long,
        v_new: long,
        batch: usize::MAX,
        ..paged
    };
    assert_eq!(
        (many.new_rows(), many.entries().cache_seqlens),
        (usize::MAX, Some(usize::MAX))
    );
    assert!(many.check().is_err());
    let rows = Append { batch: 1, ..many };
    assert!(matches!(rows.check().unwrap_err(), ProblemError::TooLarge { .. }));
}
