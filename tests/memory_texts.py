"""One kernel as Triton 3.6 and 3.9 print it; 3.7.1 is made from 3.6's, as noted.

The kernel takes a tuple of two pointers, calls a device function in a loop, loads with
a cache modifier, waits, and stores the negative.
"""

# Lines are as Triton prints them.
# ruff: noqa: E501

TRITON_3_6 = """\
#loc = loc("forms.py":8:0)
#loc13 = loc("forms.py":3:0)
#loc19 = loc("pair"(#loc))
#loc20 = loc("n"(#loc))
#loc26 = loc("x"(#loc13))
module {
  tt.func public @forms(%pair: !tt.ptr<f32> {tt.divisibility = 16 : i32} loc("pair"(#loc)), %pair_0: !tt.ptr<f32> {tt.divisibility = 16 : i32} loc("pair"(#loc)), %n: i32 loc("n"(#loc))) attributes {noinline = false} {
    %cst = arith.constant 0.000000e+00 : f32 loc(#loc1)
    %c0_i32 = arith.constant 0 : i32 loc(#loc2)
    %c1_i32 = arith.constant 1 : i32 loc(#loc3)
    %at = scf.for %i = %c0_i32 to %n step %c1_i32 iter_args(%at_2 = %c0_i32) -> (i32)  : i32 {
      %at_3 = tt.call @fx.inner__i32__(%i) : (i32) -> i32 loc(#loc22)
      %at_4 = arith.addi %at_2, %at_3 : i32 loc(#loc23)
      scf.yield %at_4 : i32 loc(#loc6)
    } loc(#loc21)
    %value = tt.addptr %pair, %at : !tt.ptr<f32>, i32 loc(#loc24)
    %value_1 = tt.load %value cacheModifier = ca evictionPolicy = evict_last : !tt.ptr<f32> loc(#loc25)
    gpu.barrier loc(#loc9)
    %0 = tt.addptr %pair_0, %at : !tt.ptr<f32>, i32 loc(#loc10)
    %1 = arith.subf %cst, %value_1 : f32 loc(#loc1)
    tt.store %0, %1 : !tt.ptr<f32> loc(#loc11)
    tt.return loc(#loc12)
  } loc(#loc)
  tt.func private @fx.inner__i32__(%x: i32 loc("x"(#loc13))) -> i32 attributes {noinline = false} {
    %c1_i32 = arith.constant 1 : i32 loc(#loc2)
    %c2_i32 = arith.constant 2 : i32 loc(#loc2)
    %c3_i32 = arith.constant 3 : i32 loc(#loc14)
    %0 = arith.cmpi sgt, %x, %c3_i32 : i32 loc(#loc14)
    cf.cond_br %0, ^bb1, ^bb2 loc(#loc14)
  ^bb1:  // pred: ^bb0
    %1 = arith.muli %x, %c2_i32 : i32 loc(#loc15)
    tt.return %1 : i32 loc(#loc16)
  ^bb2:  // pred: ^bb0
    %2 = arith.subi %x, %c1_i32 : i32 loc(#loc17)
    tt.return %2 : i32 loc(#loc18)
  } loc(#loc13)
} loc(#loc)
#loc1 = loc("forms.py":14:28)
#loc2 = loc(unknown)
#loc3 = loc("forms.py":10:19)
#loc4 = loc("forms.py":11:20)
#loc5 = loc("forms.py":11:14)
#loc6 = loc("forms.py":11:8)
#loc7 = loc("forms.py":12:30)
#loc8 = loc("forms.py":12:20)
#loc9 = loc("forms.py":13:4)
#loc10 = loc("forms.py":14:23)
#loc11 = loc("forms.py":14:27)
#loc12 = loc("forms.py":14:4)
#loc14 = loc("forms.py":4:11)
#loc15 = loc("forms.py":5:19)
#loc16 = loc("forms.py":5:15)
#loc17 = loc("forms.py":6:15)
#loc18 = loc("forms.py":6:11)
#loc21 = loc("at"(#loc3))
#loc22 = loc("at"(#loc4))
#loc23 = loc("at"(#loc5))
#loc24 = loc("value"(#loc7))
#loc25 = loc("value"(#loc8))
"""

# Called functions lost their trailing underscores, and the barrier moved.
TRITON_3_7 = TRITON_3_6.replace("i32__", "i32").replace(
    "gpu.barrier", "ttg.barrier all"
)

TRITON_3_9 = """\
#loc = loc("forms.py":8:1)
#loc11 = loc("forms.py":3:1)
#loc17 = loc("pair.0"(#loc))
#loc18 = loc("pair.1"(#loc))
#loc19 = loc("n"(#loc))
#loc25 = loc("x"(#loc11))
module {
  tt.func public @forms(%pair.0: !tt.ptr<f32> {tt.divisibility = 16 : i32} loc("pair.0"(#loc)), %pair.1: !tt.ptr<f32> {tt.divisibility = 16 : i32} loc("pair.1"(#loc)), %n: i32 loc("n"(#loc))) attributes {noinline = false} {
    %c0_i32 = arith.constant 0 : i32 loc(#loc1)
    %c1_i32 = arith.constant 1 : i32 loc(#loc2)
    %at = scf.for %i = %c0_i32 to %n step %c1_i32 iter_args(%at_1 = %c0_i32) -> (i32)  : i32 {
      %at_2 = tt.call @fx.inner__i32(%i) : (i32) -> i32 loc(#loc21)
      %at_3 = arith.addi %at_1, %at_2 : i32 loc(#loc22)
      scf.yield %at_3 : i32 loc(#loc2)
    } loc(#loc20)
    %value = tt.addptr %pair.0, %at : !tt.ptr<f32>, i32 loc(#loc23)
    %value_0 = tt.load %value {cachePolicy = #tt.cache_policy<cache_modifier = ca, eviction_policy = evict_last>} : !tt.ptr<f32> loc(#loc24)
    ttg.barrier all loc(#loc7)
    %0 = tt.addptr %pair.1, %at : !tt.ptr<f32>, i32 loc(#loc8)
    %1 = arith.negf %value_0 : f32 loc(#loc9)
    tt.store %0, %1 : !tt.ptr<f32> loc(#loc10)
    tt.return loc(#loc)
  } loc(#loc)
  tt.func private @fx.inner__i32(%x: i32 loc("x"(#loc11))) -> i32 attributes {noinline = false} {
    %c1_i32 = arith.constant 1 : i32 loc(#loc1)
    %c2_i32 = arith.constant 2 : i32 loc(#loc1)
    %c3_i32 = arith.constant 3 : i32 loc(#loc12)
    %0 = arith.cmpi sgt, %x, %c3_i32 : i32 loc(#loc12)
    cf.cond_br %0, ^bb1, ^bb2 loc(#loc12)
  ^bb1:  // pred: ^bb0
    %1 = arith.muli %x, %c2_i32 : i32 loc(#loc13)
    tt.return %1 : i32 loc(#loc14)
  ^bb2:  // pred: ^bb0
    %2 = arith.subi %x, %c1_i32 : i32 loc(#loc15)
    tt.return %2 : i32 loc(#loc16)
  } loc(#loc11)
} loc(#loc)
#loc1 = loc(unknown)
#loc2 = loc("forms.py":10:5)
#loc3 = loc("forms.py":11:15)
#loc4 = loc("forms.py":11:9)
#loc5 = loc("forms.py":12:21)
#loc6 = loc("forms.py":12:13)
#loc7 = loc("forms.py":13:5)
#loc8 = loc("forms.py":14:14)
#loc9 = loc("forms.py":14:28)
#loc10 = loc("forms.py":14:5)
#loc12 = loc("forms.py":4:8)
#loc13 = loc("forms.py":5:16)
#loc14 = loc("forms.py":5:9)
#loc15 = loc("forms.py":6:12)
#loc16 = loc("forms.py":6:5)
#loc20 = loc("at"(#loc2))
#loc21 = loc("at"(#loc3))
#loc22 = loc("at"(#loc4))
#loc23 = loc("value"(#loc5))
#loc24 = loc("value"(#loc6))
"""
