//! Tensor maps that kernels have made in global memory (PTX ISA, `tensormap.replace`).

use flashcore_ir::{ScalarType, Swizzle, TensorMapRecipe};

use crate::cluster::Cluster;
use crate::finding::FindingKind;
use crate::machine::{TENSOR_MAP_BYTES, TensorMap};
use crate::record::Details;
use crate::text::tensor_maps::field;
use crate::warp::Lane;

impl Cluster<'_> {
    /// The buffer and the map whose bytes are at an address; reports what is none.
    pub(crate) fn made_map(&mut self, by: Lane<'_>, address: u64) -> Option<(usize, TensorMap)> {
        let mut bytes = [0; TENSOR_MAP_BYTES as usize];
        let place = self.machine.slot_of(address);
        let found = match place {
            None => Err(format!("address {address:#x}, which is not a tensor map")),
            Some(place) => {
                for (i, part) in (0..).zip(bytes.chunks_exact_mut(16)) {
                    self.read_global_lane(by, place, address + 16 * i, 16, part);
                }
                self.recipe(&bytes)
            }
        };
        match found {
            Ok(found) => Some(found),
            Err(what) => {
                self.report(FindingKind::OutOfBounds, by.pc, None, |cluster| {
                    Details::new(format!("a copy uses {what}"), cluster.lane_actor(by))
                });
                None
            }
        }
    }

    /// The map of some bytes, or why it is none.
    fn recipe(&self, bytes: &[u8]) -> Result<(usize, TensorMap), String> {
        let one = |name: &str| field(bytes, name).first().copied().unwrap_or(0);
        let several = |name: &str, count: usize| field(bytes, name).into_iter().take(count);
        let (address, rank) = (one("global_address"), one("rank").min(4) as usize + 1);
        let slot = self.machine.slot_of(address);
        let slot = slot.ok_or(format!("a tensor map of address {address:#x}, which is in no buffer"))?;
        // Of integers only their bytes matter, but to sums.
        let (element, copied) = match one("elemtype") {
            0 => (ScalarType::E4M3, ScalarType::E4M3),
            1 => (ScalarType::B16, ScalarType::F16),
            2 | 3 => (ScalarType::U32, ScalarType::F32),
            6 => (ScalarType::F16, ScalarType::F16),
            7 | 8 | 11 | 12 => (ScalarType::F32, ScalarType::F32),
            10 => (ScalarType::BF16, ScalarType::BF16),
            other => return Err(format!("a tensor map of elements {other}, which are not simulated")),
        };
        let swizzles = [Swizzle::None, Swizzle::B32, Swizzle::B64, Swizzle::B128];
        let swizzle = swizzles.get(one("swizzle_mode") as usize);
        let is_plain = one("interleave_layout") == 0 && one("fill_mode") == 0;
        let is_dense = several("element_stride", rank).all(|stride| stride == 1);
        let (true, Some(&swizzle)) = (is_plain && is_dense, swizzle) else {
            return Err("a tensor map of a mode that is not simulated".to_string());
        };
        let recipe = TensorMapRecipe {
            slot: slot.into(),
            byte_offset: address.wrapping_sub(self.machine.regions[usize::from(slot)].base),
            element: copied,
            dims: several("global_dim", rank).collect(),
            byte_strides: several("global_stride", rank - 1).collect(),
            box_dims: several("box_dim", rank).map(|count| count as u32).collect(),
            swizzle,
            ragged: None,
        };
        let buffer = self.machine.launch.buffers.get(usize::from(slot));
        let problem = buffer.and_then(|buffer| recipe.check(buffer).err());
        problem.map_or(Ok(()), |problem| Err(format!("a tensor map that is wrong: {problem}")))?;
        let bytes = recipe
            .box_dims
            .iter()
            .fold(element.bytes(), |all, &count| all.saturating_mul(count));
        if buffer.is_none() || bytes > self.machine.shared_bytes {
            return Err(format!(
                "a tensor map of address {address:#x} and boxes of {bytes} B, which do not exist"
            ));
        }
        let recipe = TensorMapRecipe { element, ..recipe };
        let map = TensorMap {
            bytes,
            encoded: recipe.clone(),
            recipe,
        };
        Ok((slot.into(), map))
    }
}
