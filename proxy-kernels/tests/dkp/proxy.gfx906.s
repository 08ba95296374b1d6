s_load_dwordx16 s[40:55], $0, 0x0
s_waitcnt lgkmcnt(0)
s_mov_b32 s56, s41
s_cmp_ge_u32 $1, s40
s_cselect_b32 s56, s45, s56
s_cmp_ge_u32 $1, s44
s_cselect_b32 s56, s49, s56
s_cmp_ge_u32 $1, s48
s_cselect_b32 s56, s53, s56
s_cmp_ge_u32 s56, 2
s_cbranch_scc1 .Latoll_dkp_64_end
s_getpc_b64 s[58:59]
.Latoll_dkp_64_base:
s_mul_i32 s56, s56, 28
s_add_u32 s56, s56, .Latoll_dkp_64_selectors-.Latoll_dkp_64_base
s_add_u32 s58, s58, s56
s_addc_u32 s59, s59, 0
s_setpc_b64 s[58:59]
.Latoll_dkp_64_selectors:
s_movk_i32 s57, 32
s_getpc_b64 s[58:59]
s_add_u32 s58, s58, atoll_dkp_64_0@rel32@lo+4
s_addc_u32 s59, s59, atoll_dkp_64_0@rel32@hi+12
s_branch .Latoll_dkp_64_jump
s_movk_i32 s57, 256
s_getpc_b64 s[58:59]
s_add_u32 s58, s58, atoll_dkp_64_1@rel32@lo+4
s_addc_u32 s59, s59, atoll_dkp_64_1@rel32@hi+12
s_branch .Latoll_dkp_64_jump
.Latoll_dkp_64_jump:
v_and_b32_e32 v3, 0x3ff, v0
v_cmp_gt_u32_e32 vcc, s57, v3
s_and_b64 exec, exec, vcc
s_cbranch_execz .Latoll_dkp_64_end
s_setpc_b64 s[58:59]
.Latoll_dkp_64_end:
s_endpgm
